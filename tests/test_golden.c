/* Runs the cases of golden/README.md, which hold results and gradients of the reference, and says
   how far off the library's are. The largest errors are of one tensor, relative to its norm. */
#include "safetensors.h"
#include "../sru.h"

#include <dirent.h>
#include <unistd.h>

static double tolerance_values = 1e-6, tolerance_gradients = 1e-5;

static char temporary[512];         /* a directory of our own, for what is saved */
static int  threads;
static int  cases;
static const sru_backend *backend;  /* NULL: the CPU's; otherwise the one that an option names */

/* What weights in fewer bits may cost, and the most they did: error of h or c, of its norm. */
static struct {
    const char *name;
    sru_type    type;
    double      tolerance, worst, sum;
    char        worst_of[256];
} rounded[] = { { "bfloat16", SRU_BF16, 0.02, 0, 0, "" }, { "int8", SRU_Q8, 0.06, 0, 0, "" } };
static double others = 1;       /* factor of tolerances, in folders other than tests/golden */

/* ---- a case ---------------------------------------------------------------------------------- */

typedef struct golden {
    const char *name;
    int         failed;
    void       *bytes;
    size_t      size;
    st_file     file;
    st_config   config;
    sru_model   model;              /* SRU_PLAIN */
    float      *weights;
    sru_sizes   need;
    size_t      T, B, I, D, N, L, S;
    int         directions;
    float      *x, *state;          /* (B,S) at the start, or NULL */
    uint8_t    *mask_pad, *memory_mask_pad;
    size_t      M;                  /* steps of memory, (M,B,width) for each layer */
    float      *memory[SRU_MAX_LAYERS], *attn_mask;
    float      *dropout_mask, *rnn_dropout_mask, *layer_dropout_mask;
    int         masked;             /* a dropout mask has an effect: inference differs then */
    double      values, gradients;  /* the largest errors, and of which tensors */
    char        values_of[ST_NAME], gradients_of[ST_NAME];
} golden;

#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static void fault(golden *g, const char *format, ...)
{
    va_list args;
    if (g->failed++ > 20) return;
    printf("    %s: failed: ", g->name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

static void measure(golden *g, int gradient, const char *name, const float *is, const float *should,
                    size_t n)
{
    const double error = test_error(is, should, n);
    double *largest = gradient ? &g->gradients : &g->values;
    char *of = gradient ? g->gradients_of : g->values_of;
    const double tolerance = gradient ? tolerance_gradients : tolerance_values;
    if (error >= *largest) {
        *largest = error;
        strcpy(of, name);
    }
    if (!(error <= tolerance)) fault(g, "%s is off by %.3g of its norm", name, error);
}

/* The values of a float tensor of this shape; NULL if it is absent, or wrong, which is a fault. */
static float *read_floats(golden *g, const char *name, size_t rank, size_t a, size_t b, size_t c)
{
    const st_entry *e = st_find(&g->file, name);
    char error[SRU_ERROR_SIZE], text[400];
    sru_tensor t;
    float *data;
    size_t shape[3], i;
    shape[0] = a;
    shape[1] = b;
    shape[2] = c;
    if (!e) return NULL;
    if (strcmp(e->dtype, "F32") || e->rank != rank || memcmp(e->shape, shape, rank*sizeof *shape)) {
        fault(g, "%s has the shape %s and the type %s, which this test does not expect", name,
              st_shape(text, e->shape, e->rank), e->dtype);
        return NULL;
    }
    data = test_floats(e->count);
    memset(&t, 0, sizeof t);
    strcpy(t.name, name);
    if (e->count) {
        for (i = 0; i < rank; i++) t.shape[i] = shape[i];
        t.data = data;
        if (sru_read_tensor(&t, g->bytes, g->size, error)) fault(g, "%s", error);
        for (i = 0; i < e->count; i++) {
            const float x = st_value(e, i);
            if (memcmp(&x, data + i, 4)) {
                fault(g, "sru_read_tensor() reads another %s than there is", name);
                break;
            }
        }
    }
    return data;
}

/* A tensor like a state, from the reference's order, (L,B,N) or (2 L,B,D), to ours, (B,L,N); NULL
   if it is absent. */
static float *read_state(golden *g, const char *name, int nn_rnn)
{
    const size_t K = nn_rnn ? (size_t)g->directions : 1, width = g->N/K, B = g->B;
    float *theirs = read_floats(g, name, 3, g->L*K, B, width), *ours;
    size_t b, l;
    if (!theirs) return NULL;
    ours = test_floats(B*g->S);
    for (l = 0; l < g->L*K; l++)
        for (b = 0; b < B; b++)
            memcpy(ours + b*g->S + l*width, theirs + (l*B + b)*width, width*sizeof *ours);
    free(theirs);
    return ours;
}

static int is_indexed(const char *name, const char *prefix, size_t limit)
{
    const size_t n = strlen(prefix);
    char *stop;
    unsigned long i;
    if (strncmp(name, prefix, n) || name[n] < '0' || name[n] > '9') return 0;
    i = strtoul(name + n, &stop, 10);
    return !*stop && i < limit;
}

/* Anything else in the file might be meant to change the results, so it counts as a fault. */
static void check_names(golden *g)
{
    static const char *const known[] = { "in.x", "in.c0", "in.mask_pad", "out.h", "out.c", "cot.h",
                                         "cot.c", "grad.x", "grad.c0", "in.attn_mask",
                                         "in.memory_mask_pad" };
    const int n = (int)(sizeof known/sizeof *known);
    int i, k;
    for (i = 0; i < g->file.n; i++) {
        const char *name = g->file.entry[i].name;
        for (k = 0; k < n && strcmp(name, known[k]); k++) { }
        if (k == n && strncmp(name, "w.", 2) && strncmp(name, "grad.w.", 7)
            && !is_indexed(name, "in.dropout_mask.", g->L)
            && !is_indexed(name, "in.rnn_dropout_mask.", g->L)
            && !is_indexed(name, "in.layer_dropout_mask.", g->L ? g->L - 1 : 0)
            && !is_indexed(name, "in.memory.", g->L) && !is_indexed(name, "grad.memory.", g->L)
            && !is_indexed(name, "out.saved.", g->L))
            fault(g, "this test does not understand the tensor '%s' of the file", name);
    }
}

/* One mask for all layers, from each layer's tensor; layers without one get ones. NULL: there is no
   tensor, so this dropout was off, whatever the config says. */
static float *read_masks(golden *g, const char *prefix, size_t layers, int each_step, size_t first,
                         size_t width)
{
    const size_t rows = each_step ? g->T*g->B : g->B;
    size_t total = layers ? rows*(first + (layers - 1)*width) : 0, at = 0, i, l;
    float *masks = test_floats(total);
    int found = 0;
    for (i = 0; i < total; i++) masks[i] = 1;
    for (l = 0; l < layers; l++) {
        const size_t w = l ? width : first;
        char name[64];
        float *mask;
        sprintf(name, "%s%lu", prefix, (unsigned long)l);
        mask = each_step ? read_floats(g, name, 3, g->T, g->B, w)
                         : read_floats(g, name, 2, g->B, w, 0);
        if (mask) {
            memcpy(masks + at, mask, rows*w*sizeof *mask);
            free(mask);
            found = g->masked = 1;
        }
        at += rows*w;
    }
    if (found) return masks;
    free(masks);
    return NULL;
}

/* A mask of ones and zeros, (T,B) or (M,B); NULL if absent. */
static uint8_t *read_mask(golden *g, const char *name, size_t steps)
{
    const st_entry *mask = st_find(&g->file, name);
    uint8_t *values;
    char text[400];
    size_t i;
    if (!mask) return NULL;
    if ((strcmp(mask->dtype, "U8") && strcmp(mask->dtype, "BOOL")) || mask->rank != 2
        || mask->shape[0] != steps || mask->shape[1] != g->B) {
        fault(g, "%s has the shape %s and the type %s", name,
              st_shape(text, mask->shape, mask->rank), mask->dtype);
        return NULL;
    }
    values = (uint8_t *)test_alloc(mask->count);
    for (i = 0; i < mask->count; i++) {
        values[i] = mask->data[i];
        if (mask->data[i] > 1) fault(g, "%s has the value %d", name, mask->data[i]);
    }
    return values;
}

/* The width of layer l's input. */
static size_t width_of(const golden *g, size_t l)
{
    const int first = g->model.config.proj_input_to_hidden_first && g->I != g->N;
    return l || first ? g->N : g->I;
}

static void read_inputs(golden *g)
{
    size_t l;
    g->x = read_floats(g, "in.x", 3, g->T, g->B, g->I);
    g->state = read_state(g, "in.c0", 0);
    g->mask_pad = read_mask(g, "in.mask_pad", g->T);
    for (l = 0; l < g->L; l++) {
        const st_entry *e;
        char name[64];
        sprintf(name, "in.memory.%lu", (unsigned long)l);
        e = st_find(&g->file, name);
        if (!e) continue;
        if (e->rank && !g->M) g->M = e->shape[0];
        g->memory[l] = read_floats(g, name, 3, g->M, g->B, width_of(g, l));
    }
    if (g->M) g->memory_mask_pad = read_mask(g, "in.memory_mask_pad", g->M);
    g->attn_mask = read_floats(g, "in.attn_mask", 2, g->T, g->M + g->T, 0);
    g->dropout_mask = read_masks(g, "in.dropout_mask.", g->L, 0, g->N, g->N);
    g->rnn_dropout_mask = read_masks(g, "in.rnn_dropout_mask.", g->L, 0, width_of(g, 0), g->N);
    g->layer_dropout_mask = read_masks(g, "in.layer_dropout_mask.", g->L - 1, 1, g->N, g->N);
}

/* ---- running it ------------------------------------------------------------------------------ */

typedef struct result {
    float *h, *state, *dx, *dstate, *grads;
    float *saved[SRU_MAX_LAYERS], *dmemory[SRU_MAX_LAYERS];
    void  *tape, *work;
} result;

static void release(result *r)
{
    int l;
    for (l = 0; l < SRU_MAX_LAYERS; l++) {
        free(r->saved[l]);
        free(r->dmemory[l]);
    }
    free(r->h);
    free(r->state);
    free(r->dx);
    free(r->dstate);
    free(r->grads);
    free(r->tape);
    free(r->work);
    memset(r, 0, sizeof *r);
}

static sru_io io_of(const golden *g, result *r, int tape)
{
    sru_io io;
    memset(&io, 0, sizeof io);
    io.T = g->T;
    io.B = g->B;
    io.x = g->x;
    io.mask_pad = g->mask_pad;
    io.attn_mask = g->attn_mask;
    if (g->M) {
        io.memory = (const float *const *)g->memory;
        io.memory_length = g->M;
        io.memory_mask_pad = g->memory_mask_pad;
    }
    io.h = r->h = test_floats(g->T*g->B*g->N);
    io.state = r->state = test_floats(g->B*g->S);
    if (g->state) memcpy(r->state, g->state, g->B*g->S*sizeof *r->state);
    if (tape) {
        io.tape = r->tape = test_alloc(g->need.tape);
        io.dropout_mask = g->dropout_mask;
        io.rnn_dropout_mask = g->rnn_dropout_mask;
        io.layer_dropout_mask = g->layer_dropout_mask;
    }
    return io;
}

#ifdef SRU_CUDA
/* The arrays that a call has on the GPU, and the arrays here to which they belong. */
static struct { void *there, *here; size_t n; } moved[16 + 4*SRU_MAX_LAYERS];
static int moves;

static void *move(const sru_context *ctx, const void *here, size_t n)
{
    if (!here) return NULL;
    moved[moves].there = ctx->op->alloc(ctx, n);
    moved[moves].here = (void *)(uintptr_t)here;
    moved[moves].n = n;
    if (ctx->op->copy(ctx, moved[moves].there, here, n)) printf("failed: copy: %s\n", ctx->error);
    return moved[moves++].there;
}

/* Makes the call on the GPU: copies all arrays there, and afterwards copies them back. */
static sru_status compute_there(const golden *g, sru_context ctx, sru_model m, sru_io io,
                                int backward)
{
    const size_t rows = io.T*io.B, F = sizeof(float), L = g->L;
    const float *memory[SRU_MAX_LAYERS];
    float *saved[SRU_MAX_LAYERS], *dmemory[SRU_MAX_LAYERS];
    sru_sizes need;
    sru_status status;
    size_t l, width = 0;
    if (sru_size(&need, NULL, &m, io.T + io.memory_length, io.B)) return SRU_EINVAL;
    moves = 0;
    for (l = 0; l < L; l++) {
        const size_t n = io.memory_length*io.B*width_of(g, l)*F;
        memory[l] = io.memory ? (const float *)move(&ctx, io.memory[l], n) : NULL;
        dmemory[l] = io.dmemory ? (float *)move(&ctx, io.dmemory[l], n) : NULL;
        saved[l] = io.saved ? (float *)move(&ctx, io.saved[l], rows*width_of(g, l)*F) : NULL;
        width += width_of(g, l);
    }
    if (io.memory) io.memory = memory;
    if (io.dmemory) io.dmemory = dmemory;
    if (io.saved) io.saved = saved;
    m.weights = move(&ctx, m.weights, need.weights);
    io.x = (const float *)move(&ctx, io.x, rows*g->I*F);
    io.h = (float *)move(&ctx, io.h, rows*g->N*F);
    io.state = (float *)move(&ctx, io.state, io.B*g->S*F);
    io.mask_pad = (const uint8_t *)move(&ctx, io.mask_pad, rows);
    io.memory_mask_pad = (const uint8_t *)move(&ctx, io.memory_mask_pad, io.memory_length*io.B);
    io.attn_mask = (const float *)move(&ctx, io.attn_mask, io.T*(io.memory_length + io.T)*F);
    io.tape = move(&ctx, io.tape, g->need.tape);
    io.dropout_mask = (const float *)move(&ctx, io.dropout_mask, L*io.B*g->N*F);
    io.rnn_dropout_mask = (const float *)move(&ctx, io.rnn_dropout_mask, io.B*width*F);
    io.layer_dropout_mask = (const float *)move(&ctx, io.layer_dropout_mask, (L - 1)*rows*g->N*F);
    io.dh = (const float *)move(&ctx, io.dh, rows*g->N*F);
    io.dx = (float *)move(&ctx, io.dx, rows*g->I*F);
    io.dstate = (float *)move(&ctx, io.dstate, io.B*g->S*F);
    io.grads = (float *)move(&ctx, io.grads, g->need.weights);
    ctx.work = move(&ctx, ctx.work, ctx.work_size);
    status = backward ? sru_backward(&ctx, &m, &io) : sru_forward(&ctx, &m, &io);
    while (moves--) {
        ctx.op->copy(&ctx, moved[moves].here, moved[moves].there, moved[moves].n);
        ctx.op->release(&ctx, moved[moves].there);
    }
    return status;
}
#endif

static sru_status compute(const golden *g, const sru_context *ctx, const sru_model *m,
                          const sru_io *io, int backward)
{
#ifdef SRU_CUDA
    if (backend) return compute_there(g, *ctx, *m, *io, backward);
#endif
    (void)g;
    if (backward) return sru_backward(ctx, m, io);
    return sru_forward(ctx, m, io);
}

/* A context with scratch memory of exactly sru_size()'s size and n threads; empties the result. */
static sru_context context_of(golden *g, result *r, const sru_model *m, int training, int n,
                              char *error)
{
    sru_context ctx;
    sru_sizes need;
    memset(r, 0, sizeof *r);
    memset(&ctx, 0, sizeof ctx);
    ctx.op = backend;
    ctx.threads = n;
    if (sru_size(&need, &ctx, m, g->T + g->M, g->B)) fault(g, "sru_size() fails");
    ctx.work_size = training ? need.train_work : need.work;
    ctx.work = r->work = test_alloc(ctx.work_size);
    ctx.error = error;
    error[0] = 0;
    return ctx;
}

static result infer(golden *g, const sru_model *m, int n)
{
    char error[SRU_ERROR_SIZE];
    result r;
    const sru_context ctx = context_of(g, &r, m, 0, n, error);
    const sru_io io = io_of(g, &r, 0);
    if (compute(g, &ctx, m, &io, 0)) fault(g, "sru_forward() fails: %s", error);
    return r;
}

static result train(golden *g, const float *dh, const float *dc, int n)
{
    char error[SRU_ERROR_SIZE];
    result r;
    const sru_context ctx = context_of(g, &r, &g->model, 1, n, error);
    sru_io io = io_of(g, &r, 1);
    sru_model m = g->model;
    size_t l;
    if (!g->dropout_mask) m.config.dropout = 0;
    if (!g->rnn_dropout_mask) m.config.rnn_dropout = 0;
    if (!g->layer_dropout_mask) m.config.layer_dropout = 0;
    m.config.attn_dropout = 0;
    for (l = 0; l < g->L; l++) {
        r.saved[l] = test_floats(g->T*g->B*width_of(g, l));
        if (g->memory[l]) r.dmemory[l] = test_floats(g->M*g->B*width_of(g, l));
    }
    io.saved = r.saved;
    io.dmemory = r.dmemory;
    if (compute(g, &ctx, &m, &io, 0))
        fault(g, "sru_forward() with a tape fails: %s", error);
    io.dh = dh;
    io.dx = r.dx = test_floats(g->T*g->B*g->I);
    io.dstate = r.dstate = test_floats(g->B*g->S);
    io.grads = r.grads = (float *)test_alloc(g->need.weights);
    if (dc) memcpy(r.dstate, dc, g->B*g->S*sizeof *dc);
    if (compute(g, &ctx, &m, &io, 1)) fault(g, "sru_backward() fails: %s", error);
    return r;
}

static void same_bits(golden *g, const char *what, const float *a, const float *b, size_t n)
{
    size_t i;
    for (i = 0; i < n && !memcmp(a + i, b + i, 4); i++) { }
    if (i < n)
        fault(g, "%s: value %lu of %lu is %.9g, not %.9g", what, (unsigned long)i, (unsigned long)n,
              (double)a[i], (double)b[i]);
}

static void compare_values(golden *g, const result *r)
{
    const int nn_rnn = g->model.config.nn_rnn_compatible_return;
    float *h = read_floats(g, "out.h", 3, g->T, g->B, g->N), *c = read_state(g, "out.c", nn_rnn);
    if (h) measure(g, 0, "out.h", r->h, h, g->T*g->B*g->N);
    else   fault(g, "the file has no out.h of the right shape");
    if (c) measure(g, 0, "out.c", r->state, c, g->B*g->S);
    else   fault(g, "the file has no out.c of the right shape");
    free(h);
    free(c);
}

/* Gradients of weights, in our order, are named "grad.w." and our tensor's name. Those of alpha are
   compared together, as one tensor for all layers: each alone is one number, the sum of hundreds of
   products that nearly cancel (in srupp_deep, 0.11 is left of 60), so that rounding the activations
   to float32 already moves it by 1e-4 of itself. */
static void compare_weight_gradients(golden *g, result *r)
{
    float alphas[SRU_MAX_LAYERS], right[SRU_MAX_LAYERS];
    size_t alpha = 0;
    sru_model grads = g->model;
    sru_tensor t;
    char *seen = (char *)test_alloc((size_t)g->file.n);
    int i, k;
    grads.weights = r->grads;
    for (i = 0; sru_get_tensor(&t, &grads, i); i++) {
        char name[ST_NAME], error[SRU_ERROR_SIZE];
        const float *is = t.data;
        size_t count = 1;
        float *should;
        for (k = 0; k < 4 && t.shape[k]; k++) count *= t.shape[k];
        should = test_floats(count);
        sprintf(name, "grad.w.%s", t.name);
        for (k = 0; k < g->file.n && strcmp(g->file.entry[k].name, name); k++) { }
        if (k < g->file.n) {
            seen[k] = 1;
            strcpy(t.name, name);
            t.data = should;
            if (sru_read_tensor(&t, g->bytes, g->size, error)) fault(g, "%s", error);
        }
        if (strstr(name, ".alpha")) {
            alphas[alpha] = is[0];
            right[alpha++] = should[0];
        } else {
            measure(g, 1, name, is, should, count);     /* absent: without influence, so it is 0 */
        }
        free(should);
    }
    if (alpha) measure(g, 1, "grad.w.rnn_lst.*.alpha", alphas, right, alpha);
    for (k = 0; k < g->file.n; k++)
        if (!strncmp(g->file.entry[k].name, "grad.w.", 7) && !seen[k])
            fault(g, "no weights belong to '%s'", g->file.entry[k].name);
    free(seen);
}

static void compare_gradients(golden *g)
{
    float *dh = read_floats(g, "cot.h", 3, g->T, g->B, g->N);
    float *dc = read_state(g, "cot.c", g->model.config.nn_rnn_compatible_return);
    float *dx = read_floats(g, "grad.x", 3, g->T, g->B, g->I), *dc0 = read_state(g, "grad.c0", 0);
    result r, other;
    size_t l;
    int n;
    if (!dh) {
        dh = test_floats(g->T*g->B*g->N);
        if (!dc) fault(g, "the file has neither cot.h nor cot.c");
    }
    r = train(g, dh, dc, threads);
    compare_values(g, &r);
    compare_weight_gradients(g, &r);
    if (dx) measure(g, 1, "grad.x", r.dx, dx, g->T*g->B*g->I);
    else fault(g, "the file has no grad.x");
    if (dc0) measure(g, 1, "grad.c0", r.dstate, dc0, g->B*g->S);
    else if (g->state) fault(g, "the file has in.c0, and no grad.c0");
    for (l = 0; l < g->L; l++) {
        char name[64];
        float *should;
        sprintf(name, "out.saved.%lu", (unsigned long)l);
        should = read_floats(g, name, 3, g->T, g->B, width_of(g, l));
        if (should) measure(g, 0, name, r.saved[l], should, g->T*g->B*width_of(g, l));
        free(should);
        sprintf(name, "grad.memory.%lu", (unsigned long)l);
        should = read_floats(g, name, 3, g->M, g->B, width_of(g, l));
        if (should) measure(g, 1, name, r.dmemory[l], should, g->M*g->B*width_of(g, l));
        free(should);
    }
    for (n = 1; n <= (backend ? 1 : 3); n++) {
        other = train(g, dh, dc, n);
        same_bits(g, "h of other threads, with a tape", other.h, r.h, g->T*g->B*g->N);
        same_bits(g, "state of other threads, with a tape", other.state, r.state, g->B*g->S);
        same_bits(g, "dx of other threads", other.dx, r.dx, g->T*g->B*g->I);
        same_bits(g, "dstate of other threads", other.dstate, r.dstate, g->B*g->S);
        same_bits(g, "gradients of other threads", other.grads, r.grads,
                  g->need.weights/sizeof(float));
        release(&other);
    }
    release(&r);
    free(dh);
    free(dc);
    free(dx);
    free(dc0);
}

/* Inference on weights packed as `type`, from memory or from the file; returns 0 if it fails. */
static int infer_packed(golden *g, result *r, sru_type type, int from_file)
{
    char error[SRU_ERROR_SIZE] = "";
    sru_model packed = g->model;
    sru_sizes need;
    void *weights;
    int ok;
    packed.type = type;
    if (sru_size(&need, NULL, &packed, g->T + g->M, g->B)) {
        fault(g, "sru_size() fails for type %d", type);
        return 0;
    }
    weights = test_alloc(need.weights);
    ok = !(from_file ? sru_load_bytes(&packed, weights, g->bytes, g->size, "w.", error)
                     : sru_pack(NULL, &packed, weights, &g->model));
    if (ok) *r = infer(g, &packed, threads);
    else fault(g, "packing fails: %s", error);
    free(weights);
    return ok;
}

/* A plain network like g's, with the weights that packed ones stand for: what these make of unit
   vectors. Each may be off by at most half a step of its type. */
static sru_model unpacked(golden *g, sru_type type)
{
    const sru_backend *op = sru_cpu();
    sru_model m = g->model;
    sru_sizes need;
    sru_tensor t;
    size_t i, j, wrong = 0;
    void *copy;
    int at;
    sru_size(&need, NULL, &m, 1, 1);
    copy = test_alloc(need.weights);
    m.weights = memcpy(copy, m.weights, need.weights);
    for (at = 0; sru_get_tensor(&t, &m, at); at++) {
        const size_t n = t.shape[t.transpose], k = t.shape[!t.transpose];
        void *packed;
        float *unit, *y;
        if (!t.shape[1]) continue;
        packed = test_alloc(op->pack(NULL, NULL, type, t.data, n, k));
        unit = test_floats(k*k);
        y = test_floats(k*n);
        for (i = 0; i < k; i++) unit[i*k + i] = 1;
        if (!op->pack(NULL, packed, type, t.data, n, k)
            || op->linear_forward(NULL, y, unit, packed, type, NULL, k, n, k)) wrong++;
        for (i = 0; i < n; i++) {
            float *w = t.data + i*k, most = 0;
            for (j = 0; j < k; j++) if (fabsf(w[j]) > most) most = fabsf(w[j]);
            for (j = 0; j < k; j++) {
                const float step = type == SRU_Q8 ? most/127 : fabsf(w[j])/128;
                if (!(fabsf(y[j*n + i] - w[j]) <= 0.501f*step + 1e-30f)) wrong++;
                w[j] = y[j*n + i];
            }
        }
        free(packed); free(unit); free(y);
    }
    if (wrong) fault(g, "%lu packed weights are not what they should be", (unsigned long)wrong);
    return m;
}

/* Without a tape, results are the same but for rounding. With packed float32, also loaded so, they
   are the same bits; with fewer bits, those of the weights that these stand for, about the same. */
static void compare_inference(golden *g)
{
    result plain = infer(g, &g->model, threads), other;
    const size_t n_h = g->T*g->B*g->N, n_c = g->B*g->S;
    int n;
    if (!g->masked) compare_values(g, &plain);
    for (n = 0; n < 2 && !backend; n++) {
        if (!infer_packed(g, &other, SRU_F32, n)) continue;
#ifdef SRU_USE_CBLAS
        measure(g, 0, "h (packed)", other.h, plain.h, n_h);
        measure(g, 0, "c (packed)", other.state, plain.state, n_c);
#else
        same_bits(g, n ? "h, loaded packed" : "h, packed", other.h, plain.h, n_h);
        same_bits(g, n ? "c, loaded packed" : "c, packed", other.state, plain.state, n_c);
#endif
        release(&other);
    }
    for (n = 0; n < 2 && !backend; n++) {
        double h, c;
        sru_model m;
        result exact;
        if (!infer_packed(g, &other, rounded[n].type, 0)) continue;
        m = unpacked(g, rounded[n].type);
        exact = infer(g, &m, threads);
        h = test_error(other.h, exact.h, n_h);
        c = test_error(other.state, exact.state, n_c);
        if (!(h <= 1e-5 && c <= 1e-5))
            fault(g, "with weights in %s, h and c are %.3g and %.3g off those of these weights",
                  rounded[n].name, h, c);
        release(&exact);
        free((void *)m.weights);
        h = test_error(other.h, plain.h, n_h);
        c = test_error(other.state, plain.state, n_c);
        if (c > h) h = c;
        rounded[n].sum += h;
        if (h > rounded[n].worst) {
            rounded[n].worst = h;
            strcpy(rounded[n].worst_of, g->name);
        }
        if (!(h <= rounded[n].tolerance*others))
            fault(g, "with weights in %s, h or c is off by %.3g of its norm", rounded[n].name, h);
        release(&other);
    }
    for (n = 1; n <= (backend ? 1 : 3); n++) {
        other = infer(g, &g->model, n);
        same_bits(g, "h of other threads", other.h, plain.h, n_h);
        same_bits(g, "state of other threads", other.state, plain.state, n_c);
        release(&other);
    }
    release(&plain);
}

/* ---- loading and saving ---------------------------------------------------------------------- */

static void same(golden *g, const char *name, double is, double should)
{
    if ((float)is != (float)should) fault(g, "saved with the %s %g, not %g", name, is, should);
}

static void compare_config(golden *g, const st_file *saved)
{
    const st_config *a = &g->config;
    st_config is;
    char why[256];
    int i;
    if (strcmp(saved->module, g->file.module))
        fault(g, "saved with the module '%s'", saved->module);
    if (!st_read_config(&is, saved, why)) {
        fault(g, "saved with a config that cannot be read: %s", why);
        return;
    }
    same(g, "input_size", is.input_size, a->input_size);
    same(g, "hidden_size", is.hidden_size, a->hidden_size);
    same(g, "num_layers", is.num_layers, a->num_layers);
    same(g, "dropout", is.dropout, a->dropout);
    same(g, "rnn_dropout", is.rnn_dropout, a->rnn_dropout);
    same(g, "layer_dropout", is.layer_dropout, a->layer_dropout);
    same(g, "bidirectional", is.bidirectional, a->bidirectional);
    same(g, "use_tanh", is.use_tanh, a->use_tanh);
    same(g, "layer_norm", is.layer_norm, a->layer_norm);
    same(g, "highway_bias", is.highway_bias, a->highway_bias);
    same(g, "has_skip_term", is.has_skip_term, a->has_skip_term);
    same(g, "rescale", is.rescale, a->rescale);
    same(g, "v1", is.v1, a->v1);
    same(g, "nn_rnn_compatible_return", is.nn_rnn_compatible_return, a->nn_rnn_compatible_return);
    same(g, "proj_input_to_hidden_first", is.proj_input_to_hidden_first,
         a->proj_input_to_hidden_first);
    same(g, "normalize_after", is.normalize_after, a->normalize_after);
    /* 0 is the default in a sru_config, and is not written; what was not written is -1 here */
    same(g, "weight_c_init", is.weight_c_init, a->weight_c_init == 0 ? -1 : a->weight_c_init);
    same(g, "attn_dropout", is.attn_dropout, a->attn_dropout);
    same(g, "num_heads", is.num_heads, a->num_heads);
    same(g, "attn_layer_norm", is.attn_layer_norm, a->attn_layer_norm);
    same(g, "attention_every_n_layers", is.attention_every_n_layers, a->attention_every_n_layers);
    same(g, "attention_last_n_layers", is.attention_last_n_layers,
         a->attention_last_n_layers < -1 ? 0 : a->attention_last_n_layers);     /* none */
    for (i = 0; i < a->num_layers && i < 64; i++)
        same(g, "projection_size", is.projection[i], a->projection[i]);
}

/* When they are saved again, under a prefix, the tensors must be those of the file, to the byte. */
static void round_trip(golden *g, const char *prefix)
{
    char path[600], error[SRU_ERROR_SIZE] = "", text[400], other[400];
    sru_model m;
    st_file saved;
    void *bytes, *weights;
    size_t size = 0;
    int i, count = 0;
    sprintf(path, "%s/saved.safetensors", temporary);
    if (sru_save(path, &g->model, prefix, NULL, 0, error)) {
        fault(g, "sru_save() fails: %s", error);
        return;
    }
    bytes = sru_read_file(path, &size, error);
    unlink(path);
    if (!bytes) {
        fault(g, "sru_read_file() fails: %s", error);
        return;
    }
    if (!st_open(&saved, bytes, size)) {
        fault(g, "sru_save() wrote a file that is wrong: %s", saved.fault);
    } else {
        for (i = 0; i < g->file.n; i++) {
            const st_entry *e = &g->file.entry[i], *s;
            char name[ST_NAME];
            if (strncmp(e->name, "w.", 2)) continue;
            count++;
            sprintf(name, "%s%s", prefix, e->name + 2);
            s = st_find(&saved, name);
            if (!s) fault(g, "'%s' was not saved", name);
            else if (strcmp(s->dtype, e->dtype))
                fault(g, "'%s' was saved as %s, not %s", name, s->dtype, e->dtype);
            else if (s->rank != e->rank || memcmp(s->shape, e->shape, e->rank*sizeof *e->shape))
                fault(g, "'%s' was saved with the shape %s, not %s", name,
                      st_shape(text, s->shape, s->rank), st_shape(other, e->shape, e->rank));
            else if (memcmp(s->data, e->data, e->bytes))
                fault(g, "'%s' was saved with other values", name);
        }
        if (count != saved.n) fault(g, "%d tensors were saved, not %d", saved.n, count);
        compare_config(g, &saved);
        memset(&m, 0, sizeof m);
        weights = test_alloc(g->need.weights);
        if (sru_load_bytes(&m, weights, bytes, size, NULL, error))
            fault(g, "what was saved does not load: %s", error);
        else if (memcmp(weights, g->weights, g->need.weights))
            fault(g, "what was saved loads with other weights");
        free(weights);
    }
    st_close(&saved);
    free(bytes);
}

/* The whole case, once its file has been read. */
static void run_case(golden *g)
{
    char error[SRU_ERROR_SIZE] = "";
    const st_entry *x = st_find(&g->file, "in.x");
    const sru_config *f = &g->model.config;
    if (!st_read_config(&g->config, &g->file, error)) {
        fault(g, "the config cannot be read: %s", error);
        return;
    }
    if (sru_load_bytes(&g->model, NULL, g->bytes, g->size, "w.", error)) {
        fault(g, "sru_load_bytes() without weights fails: %s", error);
        return;
    }
    g->I = (size_t)f->input_size;
    g->D = (size_t)f->hidden_size;
    g->L = (size_t)(f->num_layers ? f->num_layers : 2);
    g->directions = f->bidirectional ? 2 : 1;
    g->N = g->D*(size_t)g->directions;
    g->S = g->L*g->N;
    if (!x || x->rank != 3) {
        fault(g, "the file has no in.x (T,B,input_size)");
        return;
    }
    g->T = x->shape[0];
    g->B = x->shape[1];
    check_names(g);
    read_inputs(g);
    if (g->failed) return;
    if (sru_size(&g->need, NULL, &g->model, g->T + g->M, g->B)) {
        fault(g, "sru_size() fails");
        return;
    }
    if (g->need.state != g->S) fault(g, "sru_size() tells %lu floats of state, not %lu",
                                     (unsigned long)g->need.state, (unsigned long)g->S);
    g->weights = (float *)test_alloc(g->need.weights);
    if (sru_load_bytes(&g->model, g->weights, g->bytes, g->size, "w.", error)) {
        fault(g, "sru_load_bytes() fails: %s", error);
        return;
    }
    compare_inference(g);
    compare_gradients(g);
    round_trip(g, "");
    round_trip(g, "w.");
}

static void run_file(const char *path, const char *file_name)
{
    char error[SRU_ERROR_SIZE] = "", name[256];
    golden g;
    int l;
    memset(&g, 0, sizeof g);
    sprintf(name, "%.*s", (int)(strlen(file_name) - strlen(".safetensors")), file_name);
    g.name = name;
    strcpy(g.values_of, "-");
    strcpy(g.gradients_of, "-");
    g.bytes = sru_read_file(path, &g.size, error);
    if (!g.bytes) {
        fault(&g, "%s", error);
    } else if (!st_open(&g.file, g.bytes, g.size)) {
        fault(&g, "this test cannot read it: %s", g.file.fault);
    } else {
        run_case(&g);
    }
    cases++;
    printf("%-30s values %.2e %-10s gradients %.2e %-50s %s\n", name, g.values, g.values_of,
           g.gradients, g.gradients_of, g.failed ? "FAIL" : "PASS");
    if (g.failed) test_failed++;
    else test_passed++;
    fflush(stdout);
    st_close(&g.file);
    free(g.bytes);
    free(g.weights);
    free(g.x);
    free(g.state);
    free(g.mask_pad);
    free(g.memory_mask_pad);
    free(g.attn_mask);
    for (l = 0; l < SRU_MAX_LAYERS; l++) free(g.memory[l]);
    free(g.dropout_mask);
    free(g.rnn_dropout_mask);
    free(g.layer_dropout_mask);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void run_directory(const char *directory)
{
    DIR *dir = opendir(directory);
    struct dirent *entry;
    char **names = NULL;
    size_t n = 0, i;
    if (!dir) {
        printf("    failed: cannot open the directory '%s'\n", directory);
        test_failed++;
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        const size_t length = strlen(entry->d_name), suffix = strlen(".safetensors");
        char **larger;
        if (length <= suffix || length > 250
            || strcmp(entry->d_name + length - suffix, ".safetensors")) continue;
        larger = (char **)test_alloc((n + 1)*sizeof *larger);
        if (n) memcpy(larger, names, n*sizeof *larger);
        free(names);
        names = larger;
        names[n] = (char *)test_alloc(length + 1);
        strcpy(names[n++], entry->d_name);
    }
    closedir(dir);
    if (!n) {
        printf("    failed: '%s' has no *.safetensors\n", directory);
        test_failed++;
    } else {
        qsort(names, n, sizeof *names, by_name);
    }
    for (i = 0; i < n; i++) {
        char *path = (char *)test_alloc(strlen(directory) + strlen(names[i]) + 2);
        sprintf(path, "%s/%s", directory, names[i]);
        run_file(path, names[i]);
        free(path);
        free(names[i]);
    }
    free(names);
}

int main(int argc, char **argv)
{
    int i, directories = 0;
    test_begin(argc, argv,
               "test_golden [--threads N] [--bf16 | --cuda | --cuda=TF32 | BF16 | FP16] [DIR...]\n"
               "Runs every *.safetensors of each DIR, or of tests/golden. Prints a line for each\n"
               "case: the largest relative error of results and of gradients. --bf16: products of\n"
               "bfloat16, if this processor has them. --cuda: on the GPU. The errors that are\n"
               "allowed are larger if products are in fewer bits.");
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            threads = (int)test_number(argv[++i], 1024);
        else if (!strcmp(argv[i], "--bf16")) {
            backend = sru_cpu_bf16();
            tolerance_values = 1e-2;
            tolerance_gradients = 3e-2;
        }
#ifdef SRU_CUDA
        else if (!strncmp(argv[i], "--cuda", 6)) {
            static const struct { const char *option; double values, gradients; } maths[] =
                { { "--cuda", 1e-6, 1e-5 }, { "--cuda=TF32", 2e-3, 1e-2 },
                  { "--cuda=BF16", 1e-2, 3e-2 }, { "--cuda=FP16", 2e-3, 2e-2 } };
            char error[SRU_ERROR_SIZE] = "there is no such option: see --help";
            int math = 0;
            while (math < 4 && strcmp(argv[i], maths[math].option)) math++;
            if (math < 4) {
                backend = sru_cuda_open(NULL, (sru_cuda_math)math, error);
                tolerance_values = maths[math].values;
                tolerance_gradients = maths[math].gradients;
            }
            if (!backend) {
                fprintf(stderr, "test_golden: %s\n", error);
                return 2;
            }
        }
#endif
        else if (argv[i][0] == '-') {
            fprintf(stderr, "There is no option '%s': see --help.\n", argv[i]);
            return 2;
        }
    }
    test_folder(temporary);
    printf("kernels: %s\n", backend ? backend->name : sru_cpu()->name);
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--threads")) {
            i++;
            continue;
        }
        if (argv[i][0] == '-') continue;
        directories++;
        others = 2;
        run_directory(argv[i]);
    }
    if (!directories) run_directory("tests/golden");
    rmdir(temporary);
    for (i = 0; i < 2 && cases && !backend; i++)
        printf("weights in %s: results off by %.1e on average, at most %.1e (%s)\n",
               rounded[i].name, rounded[i].sum/cases, rounded[i].worst, rounded[i].worst_of);
    if (!cases) {
        printf("failed: there was no case to run.\n");
        test_failed++;
    }
    return test_end();
}
