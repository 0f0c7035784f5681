#include "parties.h"
#include "clock.h"
#include "random.h"
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    _exit(99);
}

const char *new_dir(char ret[64]) {
    strcpy(ret, "/tmp/pawl-file-XXXXXX");
    if (!mkdtemp(ret)) die("mkdtemp", ret);
    return ret;
}

void remove_dir(const char *path) {
    DIR *listing = opendir(path);
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        char inner[600];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (unlink(inner) != 0) remove_dir(inner);
    }
    if (listing) closedir(listing);
    rmdir(path);
}

char dir[64];

int dir_setup(void **state) {
    (void)state;
    new_dir(dir);
    return 0;
}

int dir_teardown(void **state) {
    (void)state;
    remove_dir(dir);
    return 0;
}

const char *in_dir(const char *file) {
    static char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return path;
}

char *read_file(const char *path, size_t *ret_size) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) die("read", path);
    char *data = malloc((size_t)st.st_size + 1);
    ssize_t n = data ? read(fd, data, (size_t)st.st_size) : -1;
    if (n != st.st_size) die("read", path);
    data[n] = 0;
    close(fd);
    if (ret_size) *ret_size = (size_t)n;
    return data;
}

void write_file(const char *path, const void *data, size_t size) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) die("write", path);
    close(fd);
}

void party_open(struct party *ret, const char *path, const char *name) {
    char text[600];
    struct url *url;
    *ret = (struct party){
        .error = PAWL_ERROR_INIT,
        .claim = {.name = name, .name_len = strlen(name), .ttl_ms = 15000, .about = "pid=1&command=test"}};
    random_bytes(ret->claim.owner, sizeof ret->claim.owner);
    snprintf(text, sizeof text, "file:%s", path);
    if (url_parse(text, &url, &ret->error)) die(text, ret->error.text);
    if (file_backend.open(url, &ret->bk, &ret->error) != BK_YES) die(text, ret->error.text);
    url_free(url);
    if (file_backend.connect(ret->bk, soon(), &ret->session, &ret->error) != BK_YES) die(text, ret->error.text);
}

void party_close(struct party *party) {
    party_forget(party);
    if (party->held) party_release(party);
    file_backend.drop(party->session, false);
    file_backend.close(party->bk, false);
}

struct bk_until soon(void) {
    return (struct bk_until){clock_after_ms(clock_now_ns(), 10000), -1};
}

enum bk_says party_take(struct party *party, bool queue) {
    struct bk_grant grant = {0};
    enum bk_says says =
        file_backend.take(party->session, &party->claim, queue, soon(), &grant, &party->busy, &party->error);
    if (says == BK_YES) {
        party->grant = grant;
        party->grant.claim = &party->claim;
        party->held = true;
    }
    return says;
}

bool party_wait(struct party *party) {
    int64_t end = clock_after_ms(clock_now_ns(), 20000);
    enum bk_says says;
    while ((says = party_take(party, true)) == BK_NO) {
        int64_t again = clock_after_ms(clock_now_ns(), party->busy.ask_again_ms);
        if (clock_now_ns() >= end) return false;
        clock_wait_fd(party->busy.wake_fd, POLLIN, again < end ? again : end, -1);
    }
    return says == BK_YES;
}

void party_release(struct party *party) {
    struct bk_grant *one = &party->grant;
    enum bk_says says;
    file_backend.release(party->session, &one, 1, soon(), &says, &party->error);
    file_backend.end(&party->grant, false);
    party->held = false;
}

void party_forget(struct party *party) { file_backend.forget(party->session, &party->claim, soon(), &party->error); }

struct collect {
    struct seen *to;
    int n, most;
};

static bool collect(const struct bk_record *record, void *data) {
    struct collect *all = data;
    if (all->n < all->most) {
        struct seen *seen = all->to + all->n;
        seen->record = *record;
        snprintf(seen->name, sizeof seen->name, "%s", record->name);
        snprintf(seen->about, sizeof seen->about, "%s", record->about);
    }
    all->n++;
    return true;
}

int party_records(struct party *party, const char *name, struct seen *ret, int most) {
    struct collect all = {ret, 0, most};
    if (file_backend.records(party->session, name, collect, &all, soon(), &party->error) != BK_YES)
        die("records", party->error.text);
    return all.n;
}

int shell(const char *format, ...) {
    char command[2000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}
