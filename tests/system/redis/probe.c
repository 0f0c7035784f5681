#include "probe.h"
#include "clock.h"
#include "module.h"
#include "random.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

const struct backend *probe_backend;

struct bk_until probe_soon(int ms) {
    return (struct bk_until){.at_ns = clock_after_ms(clock_now_ns(), ms), .cancel_fd = -1};
}

static void clear(struct probe *p) { p->error = (pawl_error)PAWL_ERROR_INIT; }

static void open_url(struct probe *p, const char *text) {
    struct url *url;
    memset(p, 0, sizeof *p);
    clear(p);
    if (!probe_backend) {
        void *module = dlopen(REDIS_MODULE, RTLD_NOW | RTLD_LOCAL);
        if (!module) fail_msg("%s", dlerror());
        probe_backend = *(const struct backend *const *)dlsym(module, MODULE_BACKEND_SYMBOL);
    }
    if (url_parse(text, &url, &p->error)) fail_msg("%s", p->error.text);
    if (probe_backend->open(url, &p->bk, &p->error) != BK_YES) fail_msg("%s", p->error.text);
    url_free(url);
    snprintf(p->about, sizeof p->about, "host=h&pid=1&command=probe");
    p->life = (struct bk_life){.ttl_ms = 10000, .grant = &p->grant};
    p->claim = (struct bk_claim){.ttl_ms = 10000, .about = p->about, .life = &p->life};
    p->grant.claim = &p->claim;
    probe_name(p, "probe");
}

#define URL_OF(format)                                                                                                 \
    char text[512];                                                                                                    \
    va_list arguments;                                                                                                 \
    va_start(arguments, format);                                                                                       \
    vsnprintf(text, sizeof text, format, arguments);                                                                   \
    va_end(arguments)

void probe_open(struct probe *p, const char *format, ...) {
    URL_OF(format);
    open_url(p, text);
}

enum bk_says probe_connect(struct probe *p) {
    clear(p);
    return probe_backend->connect(p->bk, probe_soon(10000), &p->session, &p->error);
}

void probe_ready(struct probe *p, const char *format, ...) {
    URL_OF(format);
    open_url(p, text);
    if (probe_connect(p) != BK_YES) fail_msg("%s", p->error.text);
}

void probe_name(struct probe *p, const char *name) {
    snprintf(p->name, sizeof p->name, "%s", name);
    p->claim.name = p->name;
    p->claim.name_len = strlen(p->name);
    random_bytes(p->claim.owner, sizeof p->claim.owner);
}

enum bk_says probe_take(struct probe *p, bool queue) {
    clear(p);
    return probe_backend->take(p->session, &p->claim, queue, probe_soon(10000), &p->grant, &p->busy, &p->error);
}

enum bk_says probe_renew(struct probe *p) {
    struct bk_life *lives[] = {&p->life};
    enum bk_says each = BK_UNKNOWN;
    int64_t left;
    clear(p);
    enum bk_says says = probe_backend->renew(p->session, lives, 1, probe_soon(10000), &each, &left, &p->error);
    return says == BK_YES ? each : says;
}

enum bk_says probe_release(struct probe *p) {
    struct bk_grant *grants[] = {&p->grant};
    enum bk_says each = BK_UNKNOWN;
    clear(p);
    enum bk_says says = probe_backend->release(p->session, grants, 1, probe_soon(10000), &each, &p->error);
    return says == BK_YES ? each : says;
}

enum bk_says probe_forget(struct probe *p) {
    clear(p);
    return probe_backend->forget(p->session, &p->claim, probe_soon(10000), &p->error);
}

void probe_drop(struct probe *p) {
    if (p->session) probe_backend->drop(p->session, false);
    p->session = NULL;
}

void probe_close(struct probe *p) {
    probe_drop(p);
    probe_backend->close(p->bk, false);
    p->bk = NULL;
}
