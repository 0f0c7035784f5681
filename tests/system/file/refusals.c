/* refusals.c: what the backend must not lock, must not write, and must name: links, pipes, strangers' files, content
 * that is not pawl's, directories where anybody may remove files, mounts that hang, full disks. */
#include "clock.h"
#include "file/place.h"
#include "parties.h"
#include "ran.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { NOBODY = 65534 };

/* Taking NAME fails with that code, and the text holds `says`. */
static void refused(const char *name, int code, const char *says) {
    struct party party;
    party_open(&party, dir, name);
    for (int queue = 0; queue < 2; queue++) {
        assert_int_equal(party_take(&party, queue), BK_FAULT);
        if (party.error.code != code || !strstr(party.error.text, says))
            fail_msg("%s: code %d: %s", name, party.error.code, party.error.text);
    }
    party_close(&party);
}

static void not_a_regular_file(void **state) {
    (void)state;
    write_file(in_dir("target"), "", 0);
    assert_int_equal(symlink("target", in_dir("link")), 0);
    assert_int_equal(symlink("nothing", in_dir("planted")), 0);
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    assert_int_equal(mkdir(in_dir("folder"), 0700), 0);
    assert_int_equal(shell("ln %s/target %s/second", dir, dir), 0);
    refused("link", PAWL_EUNSAFE, "symbolic link");
    refused("planted", PAWL_EUNSAFE, "symbolic link");
    assert_int_not_equal(access(in_dir("nothing"), F_OK), 0);
    refused("pipe", PAWL_EUNSAFE, "not a regular file");
    refused("folder", PAWL_EUNSAFE, "is a directory");
    refused("second", PAWL_EUNSAFE, "more than one link");
    assert_int_equal(shell("rm -f %s/.pawl.tokens; ln -s target %s/.pawl.tokens", dir, dir), 0);
    refused("x", PAWL_EUNSAFE, "the token counter");
    assert_int_equal(shell("rm %s/.pawl.tokens; mkdir %s/.pawl.tokens", dir, dir), 0);
    refused("x", PAWL_EUNSAFE, "is a directory; refused");
    assert_int_equal(shell("rmdir %s/.pawl.tokens", dir), 0);
}

static void content_is_never_written(void **state) {
    (void)state;
    static const char script[] = "#!/bin/sh\necho important\n";
    struct stat before, after;
    size_t size;
    write_file(in_dir("job.sh"), script, sizeof script - 1);
    assert_int_equal(chmod(in_dir("job.sh"), 0755), 0);
    assert_int_equal(stat(in_dir("job.sh"), &before), 0);
    refused("job.sh", PAWL_EUNSAFE, "job.sh");
    int fd = open(in_dir("job.sh"), O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0); /* held by somebody else */
    refused("job.sh", PAWL_EUNSAFE, "content that pawl did not write");
    close(fd);
    assert_int_equal(stat(in_dir("job.sh"), &after), 0);
    char *text = read_file(in_dir("job.sh"), &size);
    assert_int_equal(size, sizeof script - 1);
    assert_string_equal(text, script);
    free(text);
    assert_int_equal(after.st_mode, before.st_mode);
    assert_memory_equal(&after.st_mtim, &before.st_mtim, sizeof after.st_mtim);
    assert_memory_equal(&after.st_ctim, &before.st_ctim, sizeof after.st_ctim);
}

static void content_written_while_waiting(void **state) {
    (void)state;
    struct party party;
    write_file(in_dir("pidfile"), "", 0);
    int fd = open(in_dir("pidfile"), O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    party_open(&party, dir, "pidfile");
    assert_int_equal(party_take(&party, true), BK_NO);
    assert_true(party.busy.foreign);
    assert_int_equal(write(fd, "4711\n", 5), 5);
    close(fd);
    assert_false(party_wait(&party));
    assert_int_equal(party.error.code, PAWL_EUNSAFE);
    party_close(&party);
    size_t size;
    char *text = read_file(in_dir("pidfile"), &size);
    assert_string_equal(text, "4711\n");
    free(text);
}

static void content_put_over_ours(void **state) {
    (void)state;
    struct party party;
    party_open(&party, dir, "ours");
    assert_int_equal(party_take(&party, false), BK_YES);
    party_release(&party);
    write_file(in_dir("ours"), "something else", 14); /* the same inode, which the session still has open */
    assert_int_equal(party_take(&party, false), BK_FAULT);
    assert_int_equal(party.error.code, PAWL_EUNSAFE);
    write_file(in_dir("ours"), "", 0);
    assert_int_equal(party_take(&party, false), BK_YES);
    party_release(&party);
    party_close(&party);
}

static void an_empty_file_is_locked_as_it_is(void **state) {
    (void)state;
    struct party party;
    struct stat before, after;
    write_file(in_dir("report.lock"), "", 0);
    assert_int_equal(chmod(in_dir("report.lock"), 0644), 0);
    assert_int_equal(stat(in_dir("report.lock"), &before), 0);
    party_open(&party, dir, "report.lock");
    assert_int_equal(party_take(&party, false), BK_YES);
    assert_int_equal(stat(in_dir("report.lock"), &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_int_equal(after.st_mode, before.st_mode);
    party_release(&party);
    party_close(&party);
}

static void a_strangers_file_where_anybody_makes_files(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    assert_int_equal(chmod(dir, 01777), 0);
    write_file(in_dir("planted"), "", 0);
    assert_int_equal(chown(in_dir("planted"), NOBODY, NOBODY), 0);
    refused("planted", PAWL_EUNSAFE, "was made by user 65534");
    assert_int_equal(chmod(dir, 0700), 0); /* here only the trusted make files */
    struct party party;
    party_open(&party, dir, "planted");
    assert_int_equal(party_take(&party, false), BK_YES);
    party_close(&party);
}

static int place_code(const char *path, bool make, const char *says) {
    struct place *place;
    pawl_error error = PAWL_ERROR_INIT;
    int code = place_open(path, make, &place, &error);
    if (code == PAWL_OK) place_close(place);
    else if (!strstr(error.text, says)) fail_msg("%s: %s", path, error.text);
    return code;
}

static void directories(void **state) {
    (void)state;
    assert_int_equal(place_code("/nonexistent/locks", false, "/nonexistent/locks does not exist"), PAWL_EDENIED);
    write_file(in_dir("file"), "", 0);
    assert_int_equal(place_code(in_dir("file"), false, "Not a directory"), PAWL_EDENIED);
    assert_int_equal(chmod(dir, 0777), 0);
    assert_int_equal(place_code(dir, false, "anybody may remove files"), PAWL_EUNSAFE);
    assert_int_equal(chmod(dir, 0700), 0);
    assert_int_equal(place_code(in_dir("a/b/c"), true, ""), PAWL_OK); /* the default is made, with its parents */
    struct stat st;
    assert_int_equal(stat(in_dir("a/b"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    if (geteuid() != 0) return;
    assert_int_equal(chown(in_dir("a/b/c"), NOBODY, NOBODY), 0);
    assert_int_equal(place_code(in_dir("a/b/c"), true, "belongs to user 65534"), PAWL_EUNSAFE);
}

/* Runs f as nobody; its result. */
static int as_nobody(int (*f)(void)) {
    int status;
    pid_t pid = fork();
    if (pid == 0) _exit(setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY) ? 98 : f());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 97;
}

static int take_new(void) {
    struct party party;
    party_open(&party, dir, "new");
    int says = party_take(&party, false);
    party_close(&party);
    return says;
}

/* Each user has numbers of his own there, and locks of his own; nobody keeps another from them by being first. */
static void users_do_not_meet_where_anybody_makes_files(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    struct party party;
    assert_int_equal(chmod(dir, 01777), 0);
    assert_int_equal(as_nobody(take_new), BK_YES);
    assert_int_equal(access(in_dir(".pawl.tokens.65534"), F_OK), 0);
    party_open(&party, dir, "old");
    assert_int_equal(party_take(&party, false), BK_YES);
    assert_int_equal(access(in_dir(".pawl.tokens.0"), F_OK), 0);
    party_close(&party);
    refused("new", PAWL_EUNSAFE, "was made by user 65534");
    assert_int_equal(as_nobody(take_new), BK_YES);
}

static void who_gets_no_token_leaves_no_file(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    assert_int_equal(chmod(dir, 01777), 0);
    write_file(in_dir(".pawl.tokens.65534"), "", 0);
    assert_int_equal(as_nobody(take_new), BK_FAULT);
    assert_int_equal(access(in_dir("new"), F_OK), -1);
    assert_int_equal(take_new(), BK_YES);
}

static int nobody_takes(void) {
    struct party party;
    party_open(&party, dir, "x");
    if (party_take(&party, true) != BK_FAULT || party.error.code != PAWL_EDENIED) return 1;
    return strstr(party.error.text, in_dir("x")) && strstr(party.error.text, "Permission denied") ? 0 : 2;
}

static int nobodys_home(void) {
    char path[4096];
    pawl_error error = PAWL_ERROR_INIT;
    setenv("HOME", dir, 1);
    setenv("XDG_STATE_HOME", dir, 1);
    if (place_default(path, sizeof path, &error)) return 1;
    return strcmp(path, "/nonexistent/.local/state/pawl") == 0 ? 0 : 2;
}

static int nobody_makes_home(void) { return place_code("/nonexistent/.local/state/pawl", true, "/nonexistent"); }

static void without_rights(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(as_nobody(nobody_takes), 0);
    assert_int_equal(shell("test -z \"$(ls -A %s)\"", dir), 0); /* nothing half-made */
    write_file(in_dir("x"), "", 0);                             /* root's, 0600 */
    assert_int_equal(as_nobody(nobody_takes), 0);
    assert_int_equal(as_nobody(nobodys_home), 0);
    if (access("/nonexistent", F_OK) != 0) assert_int_equal(as_nobody(nobody_makes_home), PAWL_EDENIED);
}

static void roots_default(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    char path[100];
    setenv("HOME", dir, 1);
    assert_int_equal(place_default(path, sizeof path, NULL), PAWL_OK);
    assert_string_equal(path, "/var/lib/pawl");
}

static void a_full_disk(void **state) {
    (void)state;
    if (mount("tmpfs", dir, "tmpfs", 0, "size=8k,mode=700") != 0) skip();
    assert_int_equal(shell("cat /dev/zero > %s/.fill 2>/dev/null || true", dir), 0);
    refused("lock", PAWL_EDENIED, "No space");
    assert_int_equal(shell("test \"$(ls -A %s)\" = .fill", dir), 0);
    unlink(in_dir(".fill"));
    struct party party;
    party_open(&party, dir, "lock");
    assert_int_equal(party_take(&party, false), BK_YES);
    party_close(&party);
    umount2(dir, MNT_DETACH);
}

static void no_descriptors_left(void **state) {
    (void)state;
    struct rlimit before, few;
    struct party party, other;
    party_open(&party, dir, "few");
    party_open(&other, dir, "few");
    int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    for (rlim_t spare = 0; spare < 3; spare++) { /* lock file, counter, eventfd */
        few.rlim_cur = (rlim_t)lowest + spare;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        enum bk_says says = party_take(&party, false);
        if (says == BK_YES) says = party_take(&other, true);
        else assert_int_equal(party.error.code, PAWL_EINTERNAL);
        if (says == BK_FAULT && party.held) assert_int_equal(other.error.code, PAWL_EINTERNAL);
        party_forget(&other);
        if (party.held) party_release(&party);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(party_take(&party, false), BK_YES);
    party_close(&party);
    party_close(&other);
}

static void a_small_limit_of_file_sizes(void **state) {
    (void)state;
    struct rlimit before, low = {4096, RLIM_INFINITY};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    low.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    int code = place_code(dir, false, "ulimit -f");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(code, PAWL_EDENIED);
}

/* As cron or a daemon may start us: nothing on 0, 1 and 2. What is printed then must not go into a lock file. */
static void without_standard_descriptors(void **state) {
    (void)state;
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct party party;
        clearenv();
        for (int fd = 0; fd < 3; fd++) close(fd);
        party_open(&party, dir, "x");
        if (party_take(&party, false) != BK_YES) _exit(1);
        struct party waiter;
        party_open(&waiter, dir, "x");
        if (party_take(&waiter, true) != BK_NO) _exit(1);
        for (int fd = 0; fd < 3; fd++)
            if (write(fd, "printed, and printed", 20) > 0) _exit(2);
        if (party_take(&waiter, true) != BK_NO) _exit(3);
        party_close(&waiter);
        party_close(&party);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void mounts_by_their_table(void **state) {
    (void)state;
    static const char table[] = "21 1 254:0 / / rw - ext4 /dev/vda rw\n"
                                "30 21 0:40 / /mnt/nas rw,relatime shared:5 - nfs4 nas:/x rw\n"
                                "31 30 0:41 / /mnt/nas/local rw - tmpfs tmpfs rw\n"
                                "32 21 0:42 / /home/my\\040dir rw - fuse.sshfs host:/ rw\n"
                                "33 21 0:43 / /over rw - cifs //host/x rw\n"
                                "34 33 0:44 / /over rw - ext4 /dev/vdb rw\n";
    char mount[100] = "";
    assert_null(place_bad_mount(table, "/var/lib/pawl", mount, sizeof mount));
    assert_string_equal(place_bad_mount(table, "/mnt/nas/locks", mount, sizeof mount), "nfs4");
    assert_string_equal(mount, "/mnt/nas");
    assert_string_equal(place_bad_mount(table, "/mnt/nas", mount, sizeof mount), "nfs4");
    assert_null(place_bad_mount(table, "/mnt/nasty", mount, sizeof mount));
    assert_null(place_bad_mount(table, "/mnt/nas/local/x", mount, sizeof mount));
    assert_string_equal(place_bad_mount(table, "/home/my dir/x", mount, sizeof mount), "fuse");
    assert_null(place_bad_mount(table, "/over/x", mount, sizeof mount)); /* covered by a later mount */
}

static void a_mount_that_never_answers(void **state) {
    (void)state;
    char options[100];
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd < 0) skip();
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
    if (mount("dead", dir, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
        close(fd);
        skip();
    }
    int64_t start = ran_ns();
    int code = place_code(in_dir("locks"), false, "fuse mount at"), code_root = place_code(dir, false, dir);
    int64_t took = ran_ns() - start;
    umount2(dir, MNT_DETACH | MNT_FORCE);
    close(fd);
    assert_int_equal(code, PAWL_EUNSAFE);
    assert_int_equal(code_root, PAWL_EUNSAFE);
    assert_true(took < NS_PER_S);
}

static void urls(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {{"file://host/dir", "no host"},
               {"file:/x?nope=1", "nope"},
               {"file:/x?ttl=1", "ttl"},
               {"file://u@/x", "no host"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct url *url;
        struct bk *bk;
        pawl_error error = PAWL_ERROR_INIT;
        assert_int_equal(url_parse(bad[i].text, &url, &error), PAWL_OK);
        assert_int_equal(file_backend.open(url, &bk, &error), BK_FAULT);
        assert_int_equal(error.code, PAWL_EINVALID);
        if (!strstr(error.text, bad[i].says)) fail_msg("%s: %s", bad[i].text, error.text);
        url_free(url);
    }
}

static void a_relative_directory_is_resolved_when_opened(void **state) {
    (void)state;
    char here[4096];
    struct party party, other;
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(mkdir(in_dir("sub dir"), 0700), 0);
    assert_int_equal(chdir(dir), 0);
    party_open(&party, "sub%20dir/", "x");
    assert_int_equal(chdir(here), 0);
    party_open(&other, in_dir("sub%20dir"), "x");
    assert_int_equal(party_take(&party, false), BK_YES);
    assert_int_equal(party_take(&other, false), BK_NO);
    party_close(&party);
    party_close(&other);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)
    const struct CMUnitTest tests[] = {
        TEST(not_a_regular_file),
        TEST(content_is_never_written),
        TEST(content_written_while_waiting),
        TEST(content_put_over_ours),
        TEST(an_empty_file_is_locked_as_it_is),
        TEST(a_strangers_file_where_anybody_makes_files),
        TEST(users_do_not_meet_where_anybody_makes_files),
        TEST(who_gets_no_token_leaves_no_file),
        TEST(directories),
        TEST(without_rights),
        TEST(roots_default),
        TEST(a_full_disk),
        TEST(no_descriptors_left),
        TEST(a_small_limit_of_file_sizes),
        TEST(without_standard_descriptors),
        TEST(mounts_by_their_table),
        TEST(a_mount_that_never_answers),
        TEST(urls),
        TEST(a_relative_directory_is_resolved_when_opened),
    };
    return cmocka_run_group_tests_name("file_refusals", tests, NULL, NULL);
}
