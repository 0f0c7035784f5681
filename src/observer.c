/* observer.c: one observer a client sees every event; logs are events printed, metrics are events counted. */
#include "client.h"
#include <stdio.h>

void observe(pawl_lock *l, int type, int code, const char *text) {
    const pawl_options *o = &l->client->options;
    if (!o->observe) return;
    pawl_event event = PAWL_EVENT_INIT;
    event.type = type;
    event.code = code;
    event.lock = l;
    event.user = l->user;
    event.token = l->granted ? (int64_t)l->grant.token : 0;
    snprintf(event.text, sizeof event.text, "%s", text ? text : "");
    o->observe(&event, l->name, o->observe_data);
}
