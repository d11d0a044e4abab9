/* A small reader and writer of safetensors for tests, written apart from those in sru.h, so that
   each checks the other. The reader is for whole files: of a faulty one it says so, and no more. */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include "test.h"

enum { ST_NAME = 512, ST_TEXT = 8192, ST_RANK = 12 };

/* ---- bytes that grow ------------------------------------------------------------------------- */

typedef struct st_bytes {
    unsigned char *p;
    size_t n, room;
} st_bytes;

static inline void st_put(st_bytes *b, const void *from, size_t n)
{
    if (b->n + n > b->room) {
        unsigned char *larger;
        b->room = 2*(b->n + n) + 64;
        larger = (unsigned char *)test_alloc(b->room);
        if (b->n) memcpy(larger, b->p, b->n);
        free(b->p);
        b->p = larger;
    }
    if (n) memcpy(b->p + b->n, from, n);
    b->n += n;
}

static inline void st_text(st_bytes *b, const char *text) { st_put(b, text, strlen(text)); }

static inline void st_little(st_bytes *b, uint64_t value, int bytes)
{
    for (; bytes > 0; bytes--, value >>= 8) {
        const unsigned char byte = (unsigned char)value;
        st_put(b, &byte, 1);
    }
}

static inline void st_float(st_bytes *b, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    st_little(b, bits, 4);
}

static inline void st_clear(st_bytes *b)
{
    free(b->p);
    memset(b, 0, sizeof *b);
}

/* Length, header, data: a file. */
static inline void st_file_of(st_bytes *file, const void *header, size_t n, const st_bytes *data)
{
    st_clear(file);
    st_little(file, n, 8);
    st_put(file, header, n);
    st_put(file, data->p, data->n);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct st_entry {
    char                 name[ST_NAME], dtype[16];
    size_t               rank, shape[ST_RANK], count, bytes;
    const unsigned char *data;
} st_entry;

typedef struct st_file {
    st_entry *entry;
    int       n;
    char      module[64], config[ST_TEXT], layer_dropout[64];
    size_t    data_at;              /* where the data start */
    char      fault[256];
} st_file;

typedef struct st_cursor {
    const char *p, *end;
    char       *fault;
} st_cursor;

static inline int st_fail(st_cursor *c, const char *what)
{
    if (!c->fault[0]) sprintf(c->fault, "%.200s", what);
    return 0;
}

static inline int st_next(st_cursor *c)
{
    while (c->p < c->end && strchr(" \t\r\n", *c->p) && *c->p) c->p++;
    return c->p < c->end ? (unsigned char)*c->p : -1;
}

static inline int st_take(st_cursor *c, int ch)
{
    if (st_next(c) != ch) return 0;
    c->p++;
    return 1;
}

static inline int st_utf8(char *to, unsigned code)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = (char)(0xc0 | code >> 6);
        to[1] = (char)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        to[0] = (char)(0xe0 | code >> 12);
        to[1] = (char)(0x80 | (code >> 6 & 63));
        to[2] = (char)(0x80 | (code & 63));
        return 3;
    }
    to[0] = (char)(0xf0 | code >> 18);
    to[1] = (char)(0x80 | (code >> 12 & 63));
    to[2] = (char)(0x80 | (code >> 6 & 63));
    to[3] = (char)(0x80 | (code & 63));
    return 4;
}

static inline int st_hex4(st_cursor *c, unsigned *code)
{
    char digits[5] = "", *stop;
    if (c->end - c->p < 4) return st_fail(c, "a \\u escape is cut short");
    memcpy(digits, c->p, 4);
    *code = (unsigned)strtoul(digits, &stop, 16);
    if (stop != digits + 4) return st_fail(c, "a \\u escape has no four digits");
    c->p += 4;
    return 1;
}

static inline int st_string(st_cursor *c, char *to, size_t size)
{
    static const char escape[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
    size_t n = 0;
    if (!st_take(c, '"')) return st_fail(c, "expected a string");
    for (;;) {
        if (c->p >= c->end) return st_fail(c, "a string does not end");
        if (n + 5 > size) return st_fail(c, "a string is too long for this reader");
        if (*c->p == '"') break;
        if (*c->p != '\\') {
            to[n++] = *c->p++;
            continue;
        }
        if (++c->p >= c->end) return st_fail(c, "a string does not end");
        if (*c->p == 'u') {
            unsigned code = 0, low = 0;
            c->p++;
            if (!st_hex4(c, &code)) return 0;
            if (code >= 0xd800 && code < 0xdc00) {
                if (c->end - c->p < 6 || c->p[0] != '\\' || c->p[1] != 'u')
                    return st_fail(c, "half a surrogate pair");
                c->p += 2;
                if (!st_hex4(c, &low)) return 0;
                code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            }
            n += (size_t)st_utf8(to + n, code);
        } else {
            const char *e = *c->p ? strchr(escape, *c->p) : NULL;
            if (!e) return st_fail(c, "an unknown escape");
            to[n++] = meaning[e - escape];
            c->p++;
        }
    }
    c->p++;
    to[n] = 0;
    return 1;
}

static inline int st_whole(st_cursor *c, size_t *value)
{
    int digits = 0;
    st_next(c);
    for (*value = 0; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++, digits++)
        *value = *value*10 + (size_t)(*c->p - '0');
    return digits || st_fail(c, "expected a whole number");
}

static const struct { const char *name; size_t bytes; } st_dtypes[] = {
    { "F64", 8 }, { "F32", 4 }, { "F16", 2 }, { "BF16", 2 }, { "I64", 8 }, { "I32", 4 },
    { "I16", 2 }, { "I8", 1 }, { "U64", 8 }, { "U32", 4 }, { "U16", 2 }, { "U8", 1 },
    { "BOOL", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "F8_E8M0", 1 }, { "C64", 8 }
};
enum { ST_DTYPES = sizeof st_dtypes/sizeof *st_dtypes };

static inline size_t st_dtype_bytes(const char *dtype)
{
    size_t i;
    for (i = 0; i < ST_DTYPES; i++)
        if (!strcmp(dtype, st_dtypes[i].name)) return st_dtypes[i].bytes;
    return 0;
}

static inline int st_metadata(st_file *f, st_cursor *c)
{
    char key[ST_NAME], text[ST_TEXT];
    if (!st_take(c, '{')) return st_fail(c, "the metadata are no object");
    if (st_take(c, '}')) return 1;
    do {
        if (!st_string(c, key, sizeof key)) return 0;
        if (!st_take(c, ':')) return st_fail(c, "expected ':'");
        if (!st_string(c, text, sizeof text)) return 0;
        if (!strcmp(key, "module")) sprintf(f->module, "%.60s", text);
        if (!strcmp(key, "config")) strcpy(f->config, text);
        if (!strcmp(key, "layer_dropout")) sprintf(f->layer_dropout, "%.60s", text);
    } while (st_take(c, ','));
    return st_take(c, '}') || st_fail(c, "the metadata do not end");
}

static inline int st_tensor(st_entry *e, st_cursor *c, const unsigned char *data, size_t size)
{
    size_t begin = 0, end = 0, i;
    char key[ST_NAME];
    if (!st_take(c, '{')) return st_fail(c, "a tensor is no object");
    do {
        if (!st_string(c, key, sizeof key)) return 0;
        if (!st_take(c, ':')) return st_fail(c, "expected ':'");
        if (!strcmp(key, "dtype")) {
            if (!st_string(c, e->dtype, sizeof e->dtype)) return 0;
        } else if (!strcmp(key, "shape")) {
            if (!st_take(c, '[')) return st_fail(c, "a shape is no list");
            e->rank = 0;
            if (st_take(c, ']')) continue;
            do {
                if (e->rank == ST_RANK) return st_fail(c, "too many dimensions");
                if (!st_whole(c, &e->shape[e->rank++])) return 0;
            } while (st_take(c, ','));
            if (!st_take(c, ']')) return st_fail(c, "a shape does not end");
        } else if (!strcmp(key, "data_offsets")) {
            if (!st_take(c, '[') || !st_whole(c, &begin) || !st_take(c, ',') || !st_whole(c, &end)
                || !st_take(c, ']')) return st_fail(c, "data_offsets are not two numbers");
        } else {
            return st_fail(c, "a tensor has an unknown key");
        }
    } while (st_take(c, ','));
    if (!st_take(c, '}')) return st_fail(c, "a tensor does not end");
    for (i = 0, e->count = 1; i < e->rank; i++) e->count *= e->shape[i];
    if (begin > end || end > size) return st_fail(c, "a tensor lies outside the file");
    e->data = data + begin;
    e->bytes = end - begin;
    if (!st_dtype_bytes(e->dtype)) return st_fail(c, "a tensor has an unknown type");
    return e->bytes == e->count*st_dtype_bytes(e->dtype)
        || st_fail(c, "a tensor's bytes are not those of its shape");
}

/* 1, or 0 with f->fault. st_close() in either case. f points into bytes. */
static inline int st_open(st_file *f, const void *bytes, size_t size)
{
    const unsigned char *p = (const unsigned char *)bytes;
    st_cursor c;
    size_t n = 0, total = 0;
    int i, room = 0;
    memset(f, 0, sizeof *f);
    c.fault = f->fault;
    c.p = c.end = (const char *)p;
    if (size < 8) return st_fail(&c, "the file has fewer than 8 bytes");
    for (i = 7; i >= 0; i--) n = n << 8 | p[i];
    if (n > size - 8) return st_fail(&c, "the header is longer than the file");
    f->data_at = 8 + n;
    c.p = (const char *)p + 8;
    c.end = c.p + n;
    if (!st_take(&c, '{')) return st_fail(&c, "the header is no object");
    do {
        st_entry e;
        memset(&e, 0, sizeof e);
        if (!st_string(&c, e.name, sizeof e.name)) return 0;
        if (!st_take(&c, ':')) return st_fail(&c, "expected ':'");
        if (!strcmp(e.name, "__metadata__")) {
            if (!st_metadata(f, &c)) return 0;
            continue;
        }
        if (!st_tensor(&e, &c, p + f->data_at, size - f->data_at)) return 0;
        for (i = 0; i < f->n; i++)
            if (!strcmp(f->entry[i].name, e.name)) return st_fail(&c, "two tensors of one name");
        if (f->n == room) {
            st_entry *larger = (st_entry *)test_alloc((size_t)(2*room + 16)*sizeof *larger);
            if (f->n) memcpy(larger, f->entry, (size_t)f->n*sizeof *larger);
            free(f->entry);
            f->entry = larger;
            room = 2*room + 16;
        }
        f->entry[f->n++] = e;
        total += e.bytes;
    } while (st_take(&c, ','));
    if (!st_take(&c, '}') || st_next(&c) != -1) return st_fail(&c, "the header does not end well");
    return total == size - f->data_at || st_fail(&c, "the tensors do not fill the file");
}

static inline void st_close(st_file *f)
{
    free(f->entry);
    f->entry = NULL;
}

static inline const st_entry *st_find(const st_file *f, const char *name)
{
    int i;
    for (i = 0; i < f->n; i++)
        if (!strcmp(f->entry[i].name, name)) return &f->entry[i];
    return NULL;
}

/* Value i of an F32 tensor. */
static inline float st_value(const st_entry *e, size_t i)
{
    const unsigned char *p = e->data + 4*i;
    const uint32_t bits = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* "(2,3)" */
static inline const char *st_shape(char text[400], const size_t *shape, size_t rank)
{
    size_t i, n = 0;
    text[n++] = '(';
    for (i = 0; i < rank; i++)
        n += (size_t)sprintf(text + n, i ? ",%lu" : "%lu", (unsigned long)shape[i]);
    strcpy(text + n, ")");
    return text;
}

/* ---- the configuration ----------------------------------------------------------------------- */

/* The arguments of the reference's constructor, as numbers: Booleans are 0 or 1. */
typedef struct st_config {
    double input_size, hidden_size, num_layers, dropout, rnn_dropout, bidirectional, use_tanh;
    double layer_norm, highway_bias, has_skip_term, rescale, v1, nn_rnn_compatible_return;
    double proj_input_to_hidden_first, normalize_after, weight_c_init;
    double attn_dropout, num_heads, attn_layer_norm, attention_every_n_layers;
    double attention_last_n_layers;
    double projection[64];          /* of each layer */
    double layer_dropout;           /* from the metadata: the reference has none */
} st_config;

static inline int st_number(st_cursor *c, double *value)
{
    static const char *const words[] = { "false", "true", "null" };
    static const double meanings[] = { 0, 1, -1 };
    char text[64] = "", *stop;
    size_t i;
    st_next(c);
    for (i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(c->end - c->p) >= n && !memcmp(c->p, words[i], n)) {
            c->p += n;
            *value = meanings[i];
            return 1;
        }
    }
    for (i = 0; i < sizeof text - 1 && c->p + i < c->end && c->p[i]
                && strchr("+-.0123456789eE", c->p[i]); i++) text[i] = c->p[i];
    *value = strtod(text, &stop);
    c->p += i;
    return (i && !*stop) || st_fail(c, "expected a number, true or false");
}

/* From the text of a config; defaults for what is left out. A null is -1. */
static inline int st_read_config(st_config *f, const st_file *file, char fault[256])
{
    st_cursor c;
    double all = 0, without_effect;
    int i, listed = 0;
    const struct { const char *name; double *value; } fields[] = {
        { "input_size", &f->input_size }, { "hidden_size", &f->hidden_size },
        { "num_layers", &f->num_layers }, { "dropout", &f->dropout },
        { "rnn_dropout", &f->rnn_dropout }, { "bidirectional", &f->bidirectional },
        { "use_tanh", &f->use_tanh }, { "layer_norm", &f->layer_norm },
        { "highway_bias", &f->highway_bias }, { "has_skip_term", &f->has_skip_term },
        { "rescale", &f->rescale }, { "v1", &f->v1 },
        { "nn_rnn_compatible_return", &f->nn_rnn_compatible_return },
        { "proj_input_to_hidden_first", &f->proj_input_to_hidden_first },
        { "normalize_after", &f->normalize_after }, { "weight_c_init", &f->weight_c_init },
        { "attn_dropout", &f->attn_dropout }, { "num_heads", &f->num_heads },
        { "attn_layer_norm", &f->attn_layer_norm },
        { "attention_every_n_layers", &f->attention_every_n_layers },
        { "attention_last_n_layers", &f->attention_last_n_layers },
        { "projection_size", &all }, { "proj_size", &all }
    };
    const int n = (int)(sizeof fields/sizeof *fields);
    memset(f, 0, sizeof *f);
    f->num_layers = 2;
    f->has_skip_term = f->num_heads = f->attn_layer_norm = f->attention_every_n_layers = 1;
    f->attention_last_n_layers = -1;
    f->highway_bias = strcmp(file->module, "SRUpp") ? 0 : -2;
    f->weight_c_init = -1;
    f->layer_dropout = file->layer_dropout[0] ? strtod(file->layer_dropout, NULL) : 0;
    fault[0] = 0;
    c.fault = fault;
    c.p = file->config;
    c.end = c.p + strlen(c.p);
    if (!st_take(&c, '{')) return st_fail(&c, "the config is no object");
    do {
        char key[ST_NAME], text[ST_NAME];
        if (!st_string(&c, key, sizeof key)) return 0;
        if (!st_take(&c, ':')) return st_fail(&c, "expected ':' in the config");
        for (i = 0; i < n && strcmp(fields[i].name, key); i++) { }
        if (!strcmp(key, "projection_size") && st_take(&c, '[')) {
            do if (listed == 64 || !st_number(&c, &f->projection[listed++])) return 0;
            while (st_take(&c, ','));
            if (!st_take(&c, ']')) return st_fail(&c, "a list does not end");
        } else if (i < n) {
            if (!st_number(&c, fields[i].value)) return 0;
        } else if (!strcmp(key, "amp_recurrence_fp16") || !strcmp(key, "custom_m")
                   || !strcmp(key, "transform_module")) {
            if (!st_number(&c, &without_effect)) return 0;
        } else {
            sprintf(text, "the config's argument '%.100s' is unknown here", key);
            return st_fail(&c, text);
        }
    } while (st_take(&c, ','));
    if (!st_take(&c, '}') || st_next(&c) != -1) return st_fail(&c, "the config does not end well");
    for (i = 0; !listed && i < f->num_layers && i < 64; i++) f->projection[i] = all;
    return 1;
}

#endif
