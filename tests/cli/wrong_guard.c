/* Guards as people write them, for `pawl guard test --exec`: right, or wrong in one way each. One file a resource.
 *
 *   wrong_guard right|read-then-write|once|float|reset-deletes DIRECTORY VERB...
 *
 * read-then-write: reads, compares, writes, without a lock. once: token <= last is stale, for the same holder too.
 * float: keeps the token in a float. reset-deletes: a reset removes the record. */
#include "clock.h"
#include "token.h"
#include "url.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static const char *mode;
static char path[4096], fresh[4200], locked[4200];

struct record {
    uint64_t token;
    char lock[1024], by[1024], resets[8192];
    char *data;
    size_t length;
};

static char *slurp(FILE *file, size_t *ret_length) {
    static char buffers[2][1 << 22]; /* stdin, and the record */
    static int used;
    char *data = buffers[used++];
    size_t size = sizeof buffers[0];
    *ret_length = fread(data, 1, size, file);
    return data;
}

static int read_record(struct record *ret) {
    FILE *file = fopen(path, "r");
    char line[8192];
    memset(ret, 0, sizeof *ret);
    if (!file) return 0;
    if (!fgets(line, sizeof line, file)) exit(125);
    ret->token = strcmp(mode, "float") == 0 ? (uint64_t)strtof(line, NULL) : strtoull(line, NULL, 10);
    if (!fgets(ret->lock, sizeof ret->lock, file) || !fgets(ret->by, sizeof ret->by, file)) exit(125);
    ret->lock[strcspn(ret->lock, "\n")] = ret->by[strcspn(ret->by, "\n")] = 0;
    while (fgets(line, sizeof line, file) && *line != '\n')
        if (strlen(ret->resets) + strlen(line) < sizeof ret->resets) strcat(ret->resets, line);
    ret->data = slurp(file, &ret->length);
    fclose(file);
    return 1;
}

static void write_record(const struct record *record) {
    FILE *file = fopen(fresh, "w");
    if (!file) exit(125);
    if (strcmp(mode, "float") == 0) fprintf(file, "%.0f\n", (double)(float)record->token);
    else fprintf(file, "%" PRIu64 "\n", record->token);
    fprintf(file, "%s\n%s\n%s\n", record->lock, record->by, record->resets);
    fwrite(record->data ? record->data : "", 1, record->length, file);
    if (fclose(file) || rename(fresh, path)) exit(125);
}

static int refuse(const char *word) {
    puts(word);
    return 119;
}

static int write_verb(int argc, char **argv, int seal) {
    struct record record;
    uint64_t token = 0, top = (uint64_t)clock_wall_us();
    if (argc < 5) return 125;
    size_t length = 0;
    char *data = seal ? NULL : slurp(stdin, &length);
    int there = read_record(&record);
    if (!*argv[3]) return refuse("no-token");
    if (!token_parse(argv[3], &token)) return refuse("damaged");
    if (there && strcmp(record.lock, argv[2]) != 0) return refuse("wrong-lock");
    if (record.token > top) top = record.token;
    if (token > top + TOKEN_DAY_US && argc < 6) return refuse("damaged");
    if (strcmp(mode, "float") == 0) token = (uint64_t)(float)token;
    if (strcmp(mode, "once") == 0 && there && !seal && token <= record.token) return 121;
    if (there && token < record.token) return 121;
    record.token = token;
    snprintf(record.lock, sizeof record.lock, "%s", argv[2]);
    snprintf(record.by, sizeof record.by, "%s", argv[4]);
    if (!seal) record.data = data, record.length = length;
    write_record(&record);
    return 0;
}

static int reset_verb(char **argv) {
    struct record record;
    if (!read_record(&record)) return 1;
    if (strcmp(mode, "reset-deletes") == 0) return unlink(path) ? 125 : 0;
    size_t used = strlen(record.resets);
    snprintf(record.resets + used, sizeof record.resets - used, "%" PRIu64 " %s %s %s\n", record.token, argv[2],
             argv[3], argv[4]);
    record.token = strtoull(argv[2], NULL, 10);
    write_record(&record);
    return 0;
}

int main(int argc, char **argv) {
    struct record record;
    if (argc < 5) return 125;
    mode = argv[1];
    snprintf(path, sizeof path, "%s/", argv[2]);
    url_escape(path, sizeof path, argv[4], strlen(argv[4]), "_-");
    snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    snprintf(locked, sizeof locked, "%s.lock", path);
    int fd = open(locked, O_RDWR | O_CREAT, 0666);
    if (fd < 0 || (strcmp(mode, "read-then-write") != 0 && flock(fd, LOCK_EX) < 0)) return 125;
    const char *verb = argv[3];
    if (strcmp(verb, "put") == 0 || strcmp(verb, "seal") == 0) return write_verb(argc - 3, argv + 3, *verb == 's');
    if (strcmp(verb, "reset") == 0 && argc == 8) return reset_verb(argv + 3);
    if (!read_record(&record)) return 1;
    if (strcmp(verb, "audit") == 0) return fputs(record.resets, stdout) < 0;
    printf("%" PRIu64 "\n%s\n%s\n", record.token, record.lock, record.by);
    fwrite(record.data, 1, record.length, stdout);
    return 0;
}
