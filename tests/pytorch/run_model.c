/* run_model MODEL INPUT OUTPUT: runs a network that Python saved.

   INPUT    x (T,B,I);   perhaps c0, dc (B,S), dh (T,B,N), mask_pad (T,B), dropout_mask (L,B,N),
            rnn_dropout_mask (as in sru_io, flat)
   OUTPUT   h, c of the training pass;  h_inference, c_inference of SRU_PLAIN and h_packed,
            c_packed of SRU_F32, without dropout;  dx, dc0, grad.NAME;  the network behind "rnn." */
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

int main(int argc, char **argv)
{
    sru_context ctx;
    sru_model *rnn, *packed, grads;
    sru_sizes need;
    sru_tensor t;
    sru_io io, run;
    size_t shape[4], N, i;
    float *c0, *dc, *mask;
    int k;
    if (argc != 4) {
        puts("run_model MODEL INPUT OUTPUT: see tests/pytorch/run_model.c");
        return argc == 2 && !strcmp(argv[1], "--help") ? 0 : 1;
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
    require(sru_size(&need, &ctx, rnn, io.T, io.B));
    N = (size_t)rnn->config.hidden_size*(rnn->config.bidirectional ? 2 : 1);
    c0 = read_floats("c0", NULL);
    dc = read_floats("dc", NULL);
    io.dh = (const float *)check(read_floats("dh", NULL));
    io.dropout_mask = read_floats("dropout_mask", NULL);
    io.rnn_dropout_mask = read_floats("rnn_dropout_mask", NULL);
    mask = read_floats("mask_pad", NULL);
    if (mask) {
        uint8_t *mask_pad = (uint8_t *)check(malloc(io.T*io.B));
        for (i = 0; i < io.T*io.B; i++) mask_pad[i] = mask[i] != 0;
        io.mask_pad = mask_pad;
    }

    for (k = 0; k < 2; k++) {                   /* inference: no tape, thus no dropout */
        run = io;
        run.h = output(k ? "h_packed" : "h_inference", io.T, io.B, N);
        run.state = output(k ? "c_packed" : "c_inference", io.B, need.state, 0);
        if (c0) memcpy(run.state, c0, io.B*need.state*sizeof(float));
        require(sru_forward(&ctx, k ? packed : rnn, &run));
    }

    io.h = output("h", io.T, io.B, N);
    io.state = output("c", io.B, need.state, 0);
    if (c0) memcpy(io.state, c0, io.B*need.state*sizeof(float));
    io.tape = check(malloc(need.tape ? need.tape : 1));
    require(sru_forward(&ctx, rnn, &io));
    io.dx = output("dx", io.T, io.B, (size_t)rnn->config.input_size);
    io.dstate = output("dc0", io.B, need.state, 0);
    if (dc) memcpy(io.dstate, dc, io.B*need.state*sizeof(float));
    io.grads = new_floats(need.weights/sizeof(float));
    require(sru_backward(&ctx, rnn, &io));
    grads = *rnn;
    grads.weights = io.grads;
    for (k = 0; sru_get_tensor(&t, &grads, k) && owned < 256; k++) {
        own[owned] = t;
        sprintf(own[owned++].name, "grad.%.100s", t.name);
    }
    require(sru_save(argv[3], rnn, "rnn.", own, owned, error));
    return 0;
}
