/* run_model MODEL INPUT OUTPUT: runs a network that Python saved.

   INPUT    x (T,B,I), c0 (B,C), where C is L N;   perhaps mask_pad (T,B), dropout_mask (L,B,N),
            rnn_dropout_mask (as in sru_io, flat), memory.0 ... (M,B,width), memory_mask_pad (M,B),
            attn_mask (T,M+T);   for training, dh (T,B,N), dc (B,C);   part (1): how many steps each
            call takes in inference, if not all
   OUTPUT   without dropout, h_inference, c_inference from SRU_PLAIN and h_packed, c_packed from
            SRU_F32;   saved.0 ... from the latter, if one call takes all steps;   from training, h,
            c, dx, dc0, dmemory.0 ..., grad.NAME, where NAME begins with lst. for rnn_lst.;   the
            network, with the prefix "rnn." */
#define SRU_IMPLEMENTATION
#include "../../sru.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char   error[SRU_ERROR_SIZE];
static void  *input;
static size_t input_size;

static void *check(void *p)
{
    if (p) return p;
    fprintf(stderr, "run_model: %s\n", error[0] ? error : "no memory");
    exit(1);
}

static void require(sru_status status)
{
    if (status) check(NULL);
}

static float *new_floats(size_t n) { return (float *)check(calloc(n ? n : 1, sizeof(float))); }

/* A tensor of the input; NULL if it has none. */
static float *read_floats(const char *name, size_t shape[4])
{
    sru_tensor t;
    size_t count = 1;
    sru_status status;
    int i;
    memset(&t, 0, sizeof t);
    strcpy(t.name, name);
    status = sru_read_tensor(&t, input, input_size, error);
    if (status == SRU_ENOENT) return NULL;
    require(status);
    for (i = 0; i < 4 && t.shape[i]; i++) count *= t.shape[i];
    t.data = new_floats(count);
    require(sru_read_tensor(&t, input, input_size, error));
    if (shape) memcpy(shape, t.shape, sizeof t.shape);
    return t.data;
}

static uint8_t *read_mask(const char *name)
{
    size_t shape[4], i;
    const float *values = read_floats(name, shape);
    uint8_t *mask;
    if (!values) return NULL;
    mask = (uint8_t *)check(malloc(shape[0]*shape[1]));
    for (i = 0; i < shape[0]*shape[1]; i++) mask[i] = values[i] != 0;
    return mask;
}

static sru_tensor own[256];
static int        owned;

static float *output(const char *name, size_t a, size_t b, size_t c)
{
    sru_tensor *t = &own[owned++];
    sprintf(t->name, "%.127s", name);
    t->shape[0] = a;
    t->shape[1] = b;
    t->shape[2] = c;
    return t->data = new_floats(a*b*(c ? c : 1));
}

static float *output_of_layer(const char *name, int layer, size_t a, size_t b, size_t c)
{
    char text[32];
    sprintf(text, "%.20s.%d", name, layer);
    return output(text, a, b, c);
}

/* Copies rows of C floats, which are ld_to apart in one array and ld_from in the other. */
static void copy_rows(float *to, size_t ld_to, const float *from, size_t ld_from, size_t rows,
                      size_t C)
{
    size_t r;
    for (r = 0; from && r < rows; r++) memcpy(to + r*ld_to, from + r*ld_from, C*sizeof(float));
}

int main(int argc, char **argv)
{
    sru_context ctx;
    sru_model *rnn, *packed, grads;
    sru_sizes need;
    sru_tensor t;
    sru_io io, run;
    size_t shape[4], I, N, C, S, part, from;
    const float *memory[SRU_MAX_LAYERS], *c0, *dc, *parts;
    float *saved[SRU_MAX_LAYERS], *dmemory[SRU_MAX_LAYERS], *state;
    int k, l, L;
    if (argc != 4) {
        const int asked = argc == 2 && !strcmp(argv[1], "--help");
        fputs("run_model MODEL INPUT OUTPUT: see tests/pytorch/run_model.c\n",
              asked ? stdout : stderr);
        return asked ? 0 : 1;
    }
    memset(&ctx, 0, sizeof ctx);
    memset(&io, 0, sizeof io);
    ctx.error = error;
    rnn = (sru_model *)check(sru_load(argv[1], SRU_PLAIN, error));
    packed = (sru_model *)check(sru_load(argv[1], SRU_F32, error));
    input = check(sru_read_file(argv[2], &input_size, error));
    io.x = (const float *)check(read_floats("x", shape));
    io.T = shape[0];
    io.B = shape[1];
    io.mask_pad = read_mask("mask_pad");
    io.dropout_mask = read_floats("dropout_mask", NULL);
    io.rnn_dropout_mask = read_floats("rnn_dropout_mask", NULL);
    io.memory_mask_pad = read_mask("memory_mask_pad");
    io.attn_mask = read_floats("attn_mask", NULL);
    io.dh = read_floats("dh", NULL);
    c0 = (const float *)check(read_floats("c0", NULL));
    dc = read_floats("dc", NULL);

    L = rnn->config.num_layers ? rnn->config.num_layers : 2;
    N = (size_t)rnn->config.hidden_size*(rnn->config.bidirectional ? 2 : 1);
    I = rnn->config.proj_input_to_hidden_first ? N : (size_t)rnn->config.input_size;
    C = (size_t)L*N;
    memset(dmemory, 0, sizeof dmemory);
    for (l = 0; l < L; l++) {
        char name[32];
        sprintf(name, "memory.%d", l);
        memory[l] = read_floats(name, shape);
        if (memory[l]) io.memory_length = shape[0];
    }
    if (io.memory_length) io.memory = memory;
    require(sru_size(&need, &ctx, rnn, io.memory_length + io.T, io.B));
    S = need.state;
    state = new_floats(io.B*S);
    parts = read_floats("part", NULL);
    part = parts ? (size_t)*parts : io.T;

    for (k = 0; k < 2; k++) {                   /* inference: no tape, thus no dropout */
        float *h = output(k ? "h_packed" : "h_inference", io.T, io.B, N);
        memset(state, 0, io.B*S*sizeof(float));
        copy_rows(state, S, c0, C, io.B, C);
        for (l = 0; k && part == io.T && l < L && rnn->config.arch == SRU_ARCH_SRUPP; l++)
            saved[l] = output_of_layer("saved", l, io.T, io.B, l ? N : I);
        for (from = 0; from < io.T; from += part) {
            run = io;
            if (l) run.saved = saved;
            run.T = io.T - from < part ? io.T - from : part;
            run.x = io.x + from*io.B*(size_t)rnn->config.input_size;
            run.h = h + from*io.B*N;
            run.state = state;
            require(sru_forward(&ctx, k ? packed : rnn, &run));
        }
        copy_rows(output(k ? "c_packed" : "c_inference", io.B, C, 0), C, state, S, io.B, C);
    }

    if (io.dh) {                                /* training */
        io.h = output("h", io.T, io.B, N);
        memset(state, 0, io.B*S*sizeof(float));
        copy_rows(state, S, c0, C, io.B, C);
        io.state = state;
        io.tape = check(malloc(need.tape ? need.tape : 1));
        require(sru_forward(&ctx, rnn, &io));
        copy_rows(output("c", io.B, C, 0), C, state, S, io.B, C);
        io.dx = output("dx", io.T, io.B, (size_t)rnn->config.input_size);
        io.dstate = new_floats(io.B*S);
        copy_rows(io.dstate, S, dc, C, io.B, C);
        for (l = 0; l < L; l++)
            if (memory[l])
                dmemory[l] = output_of_layer("dmemory", l, io.memory_length, io.B, l ? N : I);
        if (io.memory) io.dmemory = dmemory;
        io.grads = new_floats(need.weights/sizeof(float));
        require(sru_backward(&ctx, rnn, &io));
        copy_rows(output("dc0", io.B, C, 0), C, io.dstate, S, io.B, C);
        grads = *rnn;
        grads.weights = io.grads;
        for (k = 0; sru_get_tensor(&t, &grads, k) && owned < 256; k++) {
            own[owned] = t;             /* "rnn_lst." would mean another network */
            sprintf(own[owned++].name, "grad.%.100s", t.name + 4*!strncmp(t.name, "rnn_", 4));
        }
    }
    require(sru_save(argv[3], rnn, "rnn.", own, owned, error));
    return 0;
}
