/* The register of clients. See client.h. */
#include "client/client.h"

#include "logstore.h"
#include "os/error.h"

int clients_register(struct log_clients *c, const struct log_client *client) {
    if (c->count == CLIENTS_MAX) {
        return fail(LS_OPTION, "a log has at most %d clients", CLIENTS_MAX);
    }
    for (size_t i = 0; i < client->stream_count; i++) {
        uint8_t stream = client->streams[i];
        if (stream == 0 || stream >= STREAMS_MAX) {
            return fail(LS_OPTION, "%u is no record stream; streams are 1 to %d", (unsigned)stream, STREAMS_MAX - 1);
        }
        if (c->of_stream[stream] != 0) {
            return fail(LS_OPTION, "record stream %u has a client already", (unsigned)stream);
        }
    }
    struct log_client *registered = &c->all[c->count++];
    *registered = *client;
    if (client->calls->expansion != NULL) {
        c->expanding[c->expanding_count++] = registered;
    }
    for (size_t i = 0; i < client->stream_count; i++) {
        c->of_stream[client->streams[i]] = (uint8_t)c->count;
        format_add_stream(&c->known, client->streams[i]);
    }
    return LS_OK;
}

void log_clients_free(struct log_clients *c) {
    for (size_t i = 0; i < c->count; i++) {
        if (c->all[i].calls->free != NULL) {
            c->all[i].calls->free(c->all[i].context);
        }
    }
    c->count = c->expanding_count = 0;
}

const char *log_type_name(const struct log_clients *c, uint16_t type) {
    const struct log_client *client = log_client_of(c, type);
    return client != NULL && client->calls->type_name != NULL ? client->calls->type_name(type) : NULL;
}
