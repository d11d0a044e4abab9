/* Every operator of the backend's table against the oracle in naive.h, and what sru.h promises of
   them: bits that do not depend on threads, chunks and batches; errors; exact scratch memory. */
#include "naive.h"
#include <fenv.h>
#include <time.h>

#define COUNT(a) (sizeof(a)/sizeof((a)[0]))

static const sru_backend *op;       /* the kernels under test */
static int                bf16;     /* their products with SRU_PLAIN weights take bfloat16 */
static uint64_t           stride = 1999;    /* of the numbers at which accuracy is measured */
static char               message[SRU_ERROR_SIZE];

/* Half an ulp of 1: the relative error of one rounding. */
static const double rounding = 1.0/(1 << 24);

static sru_context context(int threads)
{
    sru_context c;
    memset(&c, 0, sizeof c);
    c.op = op;
    c.threads = threads;
    c.error = message;
    return c;
}

/* ---- Arrays of one case, released together -------------------------------------------------- */

static void  *pool[4096];
static size_t pool_count, misaligned;  /* floats by which arrays miss malloc's alignment */

static void *keep(void *p)
{
    if (pool_count == COUNT(pool)) {
        fprintf(stderr, "A case of the test has more than %d arrays.\n", (int)COUNT(pool));
        exit(2);
    }
    return pool[pool_count++] = p;
}

static void release(void)
{
    while (pool_count) free(pool[--pool_count]);
}

static float *zeros(size_t n)
{
    return (float *)keep(test_floats(n + misaligned)) + misaligned;
}

/* If products take bfloat16, all numbers are bfloat16: then nothing is rounded, and what is true of
   products of floats is true of these. */
static float *as_multiplied(float *a, size_t n)
{
    size_t i;
    for (i = 0; i < n && bf16; i++) test_set_bits(&a[i], test_bits_at(&a[i]) & 0xffff0000u);
    return a;
}

static float *randoms(size_t n)
{
    float *a = zeros(n);
    test_fill(a, n, 1);
    return as_multiplied(a, n);
}

/* An array of NaN, which an operator must overwrite without reading it. */
static float *junk(size_t n)
{
    float *a = zeros(n);
    memset(a, 0xff, n*sizeof *a);
    return a;
}

static float *copy(const float *a, size_t n)
{
    float *b = zeros(n);
    if (n) memcpy(b, a, n*sizeof *b);
    return b;
}

static double *reals(size_t n)
{
    return (double *)keep(test_alloc(n*sizeof(double)));
}

static double *wide(const float *a, size_t n)
{
    double *b = reals(n);
    size_t i;
    for (i = 0; i < n; i++) b[i] = (double)a[i];
    return b;
}

static double *sizes(const double *a, size_t n)     /* absolute values */
{
    double *b = reals(n);
    size_t i;
    for (i = 0; i < n; i++) b[i] = fabs(a[i]);
    return b;
}

/* ---- Comparisons ---------------------------------------------------------------------------- */

static int same(const void *a, const void *b, size_t bytes)
{
    return !bytes || !memcmp(a, b, bytes);
}

/* Whether bits are equal, after products with SRU_PLAIN weights: with cblas_sgemm, these may differ
   in the last places. */
static int alike(const float *a, const float *b, size_t n)
{
#ifdef SRU_USE_CBLAS
    return test_error(a, b, n) < 1e-5;
#else
    return same(a, b, n*sizeof *a);
#endif
}

static int is_nan(const float *x)
{
    return (test_bits_at(x) & 0x7fffffff) > 0x7f800000;
}

/* ||a - b||/||b||; but if b is short by chance, it counts as long as numbers of size 0.1 would be:
   what is compared here comes from numbers of size 1. */
static double distance(const float *a, const double *b, size_t n)
{
    return test_error_above(a, b, n, 0.01*(double)n);
}

/* The largest error of an element, in roundings of the sum of its terms' absolute values: at most
   one for each operation, in whatever order. */
static double roundings(const float *a, const double *b, const double *size, size_t n)
{
    double worst = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!test_finite(&a[i])) return 1e300;
        d = size[i] > 0 ? d/(size[i]*rounding) : d > 0 ? 1e300 : 0;
        if (d > worst) worst = d;
    }
    return worst;
}

/* ---- The oracle's own gradients, by finite differences in double ---------------------------- */

typedef struct problem {
    naive_scan scan;
    size_t     rows, n, k;
    double    *x, *w, *b, *y, *stats, *cot, *cotT;  /* cot: the loss is the sum of y*cot */
    int32_t   *targets;
} problem;

static double *real_randoms(size_t n)
{
    double *a = reals(n);
    size_t i;
    for (i = 0; i < n; i++) a[i] = test_random();
    return a;
}

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;
    size_t i;
    for (i = 0; i < n; i++) sum += a[i]*b[i];
    return sum;
}

static naive_variable variable(const char *name, const double *value, const double *gradient,
                               size_t n)
{
    naive_variable v;
    v.name = name;
    v.value = (double *)value;
    v.gradient = gradient;
    v.n = value ? n : 0;
    return v;
}

static double linear_loss(void *arg)
{
    problem *p = (problem *)arg;
    naive_linear_forward(p->y, p->x, p->w, p->b, p->rows, p->n, p->k);
    return dot(p->y, p->cot, p->rows*p->n);
}

static double layernorm_loss(void *arg)
{
    problem *p = (problem *)arg;
    naive_layernorm_forward(p->y, p->stats, p->x, p->w, p->b, p->rows, p->n);
    return dot(p->y, p->cot, p->rows*p->n);
}

static double embedding_loss(void *arg)
{
    problem *p = (problem *)arg;
    naive_embedding_forward(p->y, p->targets, p->w, p->rows, p->n, p->k);
    return dot(p->y, p->cot, p->rows*p->n);
}

static double softmax_loss(void *arg)
{
    problem *p = (problem *)arg;
    return 0.5*naive_softmax_loss(NULL, p->x, p->targets, 0.5, p->rows, p->n);
}

static double scan_loss(void *arg)
{
    problem *p = (problem *)arg;
    naive_scan *s = &p->scan;
    naive_scan_forward(s);
    return dot(s->h, p->cot, s->T*s->B*s->N) + dot(s->cT, p->cotT, s->B*s->N);
}

static void test_oracle_scan(int kind)
{
    naive_variable v[8];
    problem p;
    naive_scan *s = &p.scan;
    size_t rows, gates, i;
    uint8_t *pad;
    char what[64];
    memset(&p, 0, sizeof p);
    s->T = 6;
    s->B = 2;
    s->N = 4;
    s->I = 3;
    s->K = kind >> 9 & 1 ? 2 : kind & 1 ? 4 : 3;
    s->bidirectional = kind >> 1 & 1;
    s->use_tanh = s->K > 2 && (kind >> 2 & 1);
    s->scale_x = 1.3;
    rows = s->T*s->B;
    gates = naive_gates(s);
    if (kind >> 3 & 1) s->w = real_randoms((size_t)s->K*s->N*s->I);
    s->a = real_randoms(rows*s->I);
    s->u = real_randoms(rows*(size_t)s->K*s->N);
    if (s->K < 4 && !(kind >> 4 & 1)) s->x = real_randoms(rows*s->N);
    if (!(kind >> 5 & 1)) s->v = real_randoms(gates*s->N);
    s->bias = real_randoms(gates*s->N);
    if (kind >> 6 & 1) s->vt = real_randoms(rows*gates*s->N);
    if (kind >> 7 & 1) s->mask_c = real_randoms(s->B*s->N);
    pad = (uint8_t *)keep(test_alloc(rows));
    for (i = 0; i < rows; i++) pad[i] = test_bits()%3 == 0;
    if (kind >> 8 & 1) s->mask_pad = pad;
    s->c0 = real_randoms(s->B*s->N);
    s->cT = reals(s->B*s->N);
    s->h = reals(rows*s->N);
    s->c = reals(rows*s->N);
    p.cot = real_randoms(rows*s->N);
    p.cotT = real_randoms(s->B*s->N);

    scan_loss(&p);
    s->dh = p.cot;
    s->dc = reals(s->B*s->N);
    memcpy(s->dc, p.cotT, s->B*s->N*sizeof(double));
    s->du = reals(rows*(size_t)s->K*s->N);
    s->dx = reals(rows*s->N);
    s->da = reals(rows*s->I);
    s->dw = reals((size_t)s->K*s->N*s->I);
    s->dv = reals(gates*s->N);
    s->dbias = reals(gates*s->N);
    if (s->vt) s->dvt = reals(rows*gates*s->N);
    naive_scan_backward(s);
    v[0] = variable("x", s->x, s->dx, rows*s->N);
    v[1] = variable("v", s->v, s->dv, gates*s->N);
    v[2] = variable("bias", s->bias, s->dbias, gates*s->N);
    v[3] = variable("vt", s->vt, s->dvt, rows*gates*s->N);
    v[4] = variable("c0", s->c0, s->dc, s->B*s->N);
    v[5] = variable("w", s->w, s->dw, (size_t)s->K*s->N*s->I);
    v[6] = variable("a", s->w ? s->a : NULL, s->da, rows*s->I);
    v[7] = variable("u", s->w ? NULL : s->u, s->du, rows*(size_t)s->K*s->N);
    sprintf(what, "scan of kind %d", kind);
    naive_check_gradient(what, scan_loss, &p, v, 8);
    release();
}

static void test_oracle(void)
{
    naive_variable v[3];
    problem p;
    double *dx, *dw, *db;
    size_t i;
    int kind;
    memset(&p, 0, sizeof p);
    p.rows = 5;
    p.n = 4;
    p.k = 6;
    p.x = real_randoms(30);
    p.w = real_randoms(24);
    p.b = real_randoms(6);
    p.y = reals(20);
    p.stats = reals(10);
    p.cot = real_randoms(20);
    p.targets = (int32_t *)keep(test_alloc(5*sizeof(int32_t)));

    dx = reals(30), dw = reals(24), db = reals(6);
    linear_loss(&p);
    naive_linear_backward(dx, dw, db, p.cot, p.x, p.w, 0, p.rows, p.n, p.k);
    v[0] = variable("x", p.x, dx, 30);
    v[1] = variable("w", p.w, dw, 24);
    v[2] = variable("b", p.b, db, 4);
    naive_check_gradient("linear", linear_loss, &p, v, 3);

    dx = reals(30), dw = reals(24), db = reals(6);
    layernorm_loss(&p);
    naive_layernorm_backward(dx, dw, db, p.cot, p.x, p.w, p.stats, 0, p.rows, p.n);
    v[0] = variable("x", p.x, dx, 20);
    v[1] = variable("gain", p.w, dw, 4);
    v[2] = variable("bias", p.b, db, 4);
    naive_check_gradient("layer norm", layernorm_loss, &p, v, 3);

    for (i = 0; i < 5; i++) p.targets[i] = (int32_t)(i*2) - 2;   /* -2 0 2 4 6: size is 6 */
    dw = reals(24);
    naive_embedding_backward(dw, p.cot, p.targets, p.rows, p.n, p.k);
    v[0] = variable("table", p.w, dw, 24);
    naive_check_gradient("embedding", embedding_loss, &p, v, 1);

    for (i = 0; i < 5; i++) p.targets[i] = (int32_t)i - 1;       /* -1 0 1 2 3: n is 4 */
    dx = reals(30);
    naive_softmax_loss(dx, p.x, p.targets, 0.5, p.rows, p.n);
    v[0] = variable("y", p.x, dx, 20);
    naive_check_gradient("softmax loss", softmax_loss, &p, v, 1);
    release();
    for (kind = 0; kind < 1024; kind++) test_oracle_scan(kind);
}

/* ---- Packed weights ------------------------------------------------------------------------- */

static const char *type_names[] = {"PLAIN", "F32", "BF16", "Q8"};

/* Weights (n,k). If rows are long, only those of the first panels differ, and others equal the one
   DISTINCT rows before: else reading packed ones would take more time than all other tests. */
enum { PANEL = 16, DISTINCT = 7*PANEL };

static size_t rows_that_differ(size_t n, size_t k)
{
    return k > 500 && n > DISTINCT ? (size_t)DISTINCT : n;
}

static float *weights(size_t n, size_t k)
{
    float *w = randoms(n*k);
    size_t i;
    for (i = rows_that_differ(n, k)*k; i < n*k; i++) w[i] = w[i - DISTINCT*k];
    return w;
}

/* w (n,k) packed; NULL if the type is not offered. The oracle gets the weights that the packed ones
   stand for, real (n,k), read by multiplying with 1. Each must be as near w as its type allows. */
static char *packed(sru_type type, const float *w, double *real, size_t n, size_t k)
{
    sru_context c = context(1);
    const size_t differ = rows_that_differ(n, k), panels = (n + PANEL - 1)/PANEL;
    const size_t last = differ < n ? (panels - 1)*PANEL : n;    /* of a panel of its own */
    size_t bytes = op->pack(&c, NULL, type, NULL, n, k), i, j;
    const size_t panel = panels ? bytes/panels : 0;
    char *to;
    float *one, *y, *end;
    if (!bytes && n && k) return NULL;
    to = (char *)zeros((bytes + 3)/4);
    memset(to, 0xff, bytes);
    CHECK(op->pack(&c, to, type, w, n, k) == bytes, "%s (%lu,%lu): two sizes", type_names[type],
          (unsigned long)n, (unsigned long)k);
    if (!real) return to;
    one = zeros(k*k);
    y = junk(k*differ);
    end = junk(k*(n - last));
    for (i = 0; i < k; i++) one[i*k + i] = 1;
    CHECK(op->linear_forward(&c, y, one, to, type, NULL, k, differ, k) == SRU_OK, "%s", message);
    CHECK(op->linear_forward(&c, end, one, to + last/PANEL*panel, type, NULL, k, n - last, k)
          == SRU_OK, "%s", message);
    for (i = differ; i < last; i += PANEL)
        CHECK(same(to + i/PANEL*panel, to + (i - DISTINCT)/PANEL*panel, panel),
              "%s (%lu,%lu): a panel of the same rows has other bytes", type_names[type],
              (unsigned long)n, (unsigned long)k);
    for (i = 0; i < n; i++) {
        double max = 0, worst = 0;
        for (j = 0; j < k; j++) {
            const float *v = i < last ? &y[j*differ + i%differ] : &end[j*(n - last) + i - last];
            double error = fabs((double)*v - (double)w[i*k + j]);
            real[i*k + j] = (double)*v;
            if (type == SRU_BF16 && w[i*k + j] != 0) error /= fabs((double)w[i*k + j]);
            if (fabs((double)w[i*k + j]) > max) max = fabs((double)w[i*k + j]);
            if (!test_finite(v)) error = 1e300;
            if (error > worst) worst = error;
        }
        /* bfloat16 has 8 bits: half of the last is at most 2^-8 of the number. int8 has 254 steps
           from -max to max; its scale, and the product with that, are rounded */
        if (type == SRU_F32) CHECK(worst == 0, "F32 is off by %g", worst);
        if (type == SRU_BF16) CHECK(worst <= 1.0/256, "bfloat16 is off by %g of it", worst);
        if (type == SRU_Q8) {
            CHECK(worst <= max*(1.0/254 + 4*rounding), "int8 is off by %g of %g", worst, max);
        }
    }
    return to;
}

/* Packed bytes are the same for every instruction set. */
static void test_pack(void)
{
    static const size_t shapes[][2] = {{1, 1}, {16, 16}, {17, 5}, {5, 17}, {33, 40}, {48, 1}};
    static uint64_t first[COUNT(shapes)][4];
    sru_context c = context(1);
    size_t i, j;
    int type;
    for (i = 0; i < COUNT(shapes); i++) {
        size_t n = shapes[i][0], k = shapes[i][1];
        float *w = zeros(n*k);
        test_random_state = 77 + i;
        test_fill(w, n*k, 1);
        memset(w, 0, k*sizeof *w);      /* a row of zeros has no scale */
        if (n > 1 && k > 1) w[k + 1] = 0;       /* 0 behind another number */
        for (type = SRU_F32; type <= SRU_Q8; type++) {
            size_t bytes = op->pack(&c, NULL, (sru_type)type, NULL, n, k);
            const unsigned char *p;
            double *real = reals(n*k);
            uint64_t hash = UINT64_C(1469598103934665603);
            if (!bytes) {
                printf("skipped: packing as %s is not offered\n", type_names[type]);
                continue;
            }
            p = (const unsigned char *)packed((sru_type)type, w, real, n, k);
            for (j = 0; j < bytes; j++) hash = (hash ^ p[j])*UINT64_C(1099511628211);
            for (j = 0; j + 4 <= bytes && type == SRU_BF16; j += 4) {
                uint32_t bits;
                memcpy(&bits, p + j, 4);
                CHECK(!(bits & 0x7fffffff) || (bits & 0x7f800000), "bfloat16 (%lu,%lu): bits %lx "
                      "are a denormal", (unsigned long)n, (unsigned long)k, (unsigned long)bits);
            }
            if (!first[i][type]) first[i][type] = hash;
            CHECK(first[i][type] == hash, "%s (%lu,%lu): other bytes than the first instruction "
                  "set's", type_names[type], (unsigned long)n, (unsigned long)k);
            CHECK(bytes*(type == SRU_F32 ? 1u : type == SRU_BF16 ? 2u : 4u)
                  <= (n + 15)/16*16*(k*4 + 16 + (type == SRU_Q8 ? 32 : 0)),
                  "%s (%lu,%lu) takes %lu bytes", type_names[type], (unsigned long)n,
                  (unsigned long)k, (unsigned long)bytes);
        }
#ifndef __cplusplus     /* there an enum cannot hold what is not a value of it */
        CHECK(op->pack(&c, NULL, (sru_type)99, NULL, n, k) == 0, "type 99 is offered");
#endif
        for (type = SRU_PLAIN; type <= SRU_Q8 && n && k; type++) {
            void *p;
            float *y, *bad = zeros(n*k), nothing = 0;
            test_fill(bad, n*k, 1);
            test_make_nan(bad + n*k/2); /* a weight that is no number must not look like one */
            p = test_alloc(op->pack(&c, NULL, (sru_type)type, NULL, n, k));
            op->pack(&c, p, (sru_type)type, bad, n, k);
            y = zeros(n);
            CHECK(op->linear_forward(&c, y, bad, p, (sru_type)type, NULL, 1, n, k) == SRU_OK
                  && is_nan(&y[n*k/2/k]), "%s (%lu,%lu): NaN becomes %g", type_names[type],
                  (unsigned long)n, (unsigned long)k, (double)y[n*k/2/k]);
            free(p);
            CHECK(op->pack(&c, NULL, (sru_type)type, NULL, (size_t)-1/8, 16) == 0
                  && op->pack(&c, NULL, (sru_type)type, NULL, 1, (size_t)-1) == 0,
                  "%s: sizes that do not fit are packed", type_names[type]);
            CHECK(op->pack(&c, &nothing, (sru_type)type, NULL, n, k) == 0,
                  "%s (%lu,%lu): weights that are not there are packed", type_names[type],
                  (unsigned long)n, (unsigned long)k);
            CHECK(op->pack(&c, &nothing, (sru_type)type, NULL, 0, k) == 0 && nothing == 0,
                  "%s: no rows are packed", type_names[type]);
        }
    }
    release();
}

/* ---- linear --------------------------------------------------------------------------------- */

static const size_t linear_shapes[][3] = {      /* rows, n, k */
    {0, 5, 3}, {5, 0, 3}, {5, 3, 0}, {0, 0, 0}, {1, 1, 1}, {1, 1, 200}, {1, 130, 70}, {1, 16, 16},
    {2, 15, 17}, {2, 33, 1}, {3, 17, 15}, {4, 16, 8}, {5, 100, 1}, {5, 7, 31}, {6, 32, 16},
    {7, 31, 33}, {8, 47, 20}, {9, 48, 64}, {11, 1, 50}, {12, 65, 13}, {13, 64, 64}, {14, 16, 100},
    {15, 18, 19}, {16, 16, 16}, {17, 48, 32}, {31, 5, 5}, {33, 64, 47}, {64, 80, 96}, {65, 3, 129},
    {200, 33, 129}, {257, 20, 24}, {3, 300, 513}, {2100, 17, 3}, {70, 90, 270}, {9, 50, 1030},
    {27, 262, 1027}, {3, 1100, 1027}, {1030, 8, 1100}, {40, 256, 20}, {21, 2100, 5},
    {1030, 150, 260}, {90, 330, 17}
};

static void test_linear_shape(size_t rows, size_t n, size_t k)
{
    float *x = randoms(rows*k), *w = weights(n, k), *b = randoms(n), *dy = randoms(rows*n);
    float *y = junk(rows*n), *y0 = junk(rows*n), *y1 = junk(rows*n);
    double *X = wide(x, rows*k), *W = wide(w, n*k), *DY = wide(dy, rows*n);
    double *Y = reals(rows*n), *size = reals(rows*n);
    char what[64];
    int threads, type, i, j;
    sru_context c = context(1);
    sprintf(what, "linear (%lu,%lu,%lu)%s", (unsigned long)rows, (unsigned long)n,
            (unsigned long)k, misaligned ? " misaligned" : "");

    naive_linear_forward(Y, X, W, wide(b, n), rows, n, k);
    naive_linear_forward(size, sizes(X, rows*k), sizes(W, n*k), sizes(wide(b, n), n), rows, n, k);
    CHECK(op->linear_forward(&c, y, x, w, SRU_PLAIN, b, rows, n, k) == SRU_OK, "%s: %s", what,
          message);
    CHECK(roundings(y, Y, size, rows*n) <= (double)k + 1, "%s: off by %g roundings", what,
          roundings(y, Y, size, rows*n));
    CHECK(op->linear_forward(&c, y0, x, w, SRU_PLAIN, NULL, rows, n, k) == SRU_OK, "%s: %s", what,
          message);
    naive_linear_forward(Y, X, W, NULL, rows, n, k);
    CHECK(roundings(y0, Y, size, rows*n) <= (double)k + 1, "%s: off by %g roundings without b",
          what, roundings(y0, Y, size, rows*n));
    for (threads = 2; threads <= TEST_THREADS; threads++) {
        c.threads = threads;
        memset(y1, 0xff, rows*n*sizeof *y1);
        op->linear_forward(&c, y1, x, w, SRU_PLAIN, b, rows, n, k);
        CHECK(alike(y1, y, rows*n), "%s: other bits with %d threads", what, threads);
    }
    c.threads = 1;
    for (i = 0; i < 3 && rows; i++) {
        size_t r = i == 0 ? 0 : i == 1 ? rows/2 : rows - 1;
        memset(y1, 0xff, n*sizeof *y1);
        op->linear_forward(&c, y1, x + r*k, w, SRU_PLAIN, b, 1, n, k);
        CHECK(alike(y1, y + r*n, n), "%s: row %lu has other bits alone", what, (unsigned long)r);
    }
    for (type = SRU_F32; type <= SRU_Q8; type++) {
        double *R = reals(n*k);
        const int exact = type == SRU_F32 && !bf16;     /* it has the bits of PLAIN */
        void *p = packed((sru_type)type, w, exact ? NULL : R, n, k);
        if (!p) continue;
        memset(y1, 0xff, rows*n*sizeof *y1);
        CHECK(op->linear_forward(&c, y1, x, p, (sru_type)type, b, rows, n, k) == SRU_OK,
              "%s %s: %s", what, type_names[type], message);
        if (exact) {
            CHECK(alike(y1, y, rows*n), "%s: F32 has other bits than PLAIN", what);
        } else {
            /* a scale is one rounding more when R is read, and one more here */
            naive_linear_forward(Y, X, R, wide(b, n), rows, n, k);
            CHECK(roundings(y1, Y, size, rows*n) <= 1.01*(double)k + 4,
                  "%s %s: off by %g roundings", what, type_names[type],
                  roundings(y1, Y, size, rows*n));
        }
        c.threads = 3;
        memset(y0, 0xff, rows*n*sizeof *y0);
        op->linear_forward(&c, y0, x, p, (sru_type)type, b, rows, n, k);
        CHECK(same(y0, y1, rows*n*sizeof *y), "%s %s: other bits with 3 threads", what,
              type_names[type]);
        c.threads = 1;
        for (i = 0; i < 3 && rows; i++) {
            size_t r = i == 0 ? 0 : i == 1 ? rows/2 : rows - 1;
            memset(y0, 0xff, n*sizeof *y0);
            op->linear_forward(&c, y0, x + r*k, p, (sru_type)type, b, 1, n, k);
            CHECK(same(y0, y1 + r*n, n*sizeof *y), "%s %s: row %lu has other bits alone", what,
                  type_names[type], (unsigned long)r);
        }
    }

    for (i = 0; i < 2; i++) {
        float beta = i ? 1.0f : 0.0f;
        float *dx0 = i ? randoms(rows*k) : junk(rows*k), *dw0 = randoms(n*k), *db0 = randoms(n);
        float *dx = copy(dx0, rows*k), *dw = copy(dw0, n*k), *db = copy(db0, n);
        float *dx1, *dw1, *db1;
        double *DX = i ? wide(dx0, rows*k) : reals(rows*k), *DW = wide(dw0, n*k);
        double *DB = wide(db0, n);
        double *sx = sizes(DX, rows*k), *sw = sizes(DW, n*k), *sb = sizes(DB, n);
        naive_linear_backward(DX, DW, DB, DY, X, W, (double)beta, rows, n, k);
        naive_linear_backward(sx, sw, sb, sizes(DY, rows*n), sizes(X, rows*k), sizes(W, n*k),
                              (double)beta, rows, n, k);
        CHECK(op->linear_backward(&c, dx, dw, db, dy, x, w, beta, rows, n, k) == SRU_OK, "%s: %s",
              what, message);
        CHECK(roundings(dx, DX, sx, rows*k) <= (double)n + 2, "%s: dx off by %g roundings", what,
              roundings(dx, DX, sx, rows*k));
        CHECK(roundings(dw, DW, sw, n*k) <= (double)rows + 2, "%s: dw off by %g roundings", what,
              roundings(dw, DW, sw, n*k));
        CHECK(roundings(db, DB, sb, n) <= (double)rows + 2, "%s: db off by %g roundings", what,
              roundings(db, DB, sb, n));
        for (threads = 2; threads <= TEST_THREADS; threads++) {
            dx1 = copy(dx0, rows*k), dw1 = copy(dw0, n*k), db1 = copy(db0, n);
            c.threads = threads;
            op->linear_backward(&c, dx1, dw1, db1, dy, x, w, beta, rows, n, k);
            CHECK(alike(dx1, dx, rows*k) && alike(dw1, dw, n*k) && alike(db1, db, n),
                  "%s: other gradient bits with %d threads", what, threads);
        }
        c.threads = 1;
        dx1 = copy(dx0, rows*k), dw1 = copy(dw0, n*k), db1 = copy(db0, n);
        op->linear_backward(&c, dx1, NULL, NULL, dy, NULL, w, beta, rows, n, k);
        op->linear_backward(&c, NULL, dw1, NULL, dy, x, NULL, beta, rows, n, k);
        op->linear_backward(&c, NULL, NULL, db1, dy, NULL, NULL, beta, rows, n, k);
        CHECK(alike(dx1, dx, rows*k) && alike(dw1, dw, n*k) && alike(db1, db, n),
              "%s: other gradient bits one at a time", what);
        if (!i) {
            dx1 = copy(x, rows*k), dw1 = copy(dw0, n*k);
            op->linear_backward(&c, dx1, dw1, NULL, dy, dx1, w, 0, rows, n, k);
            CHECK(alike(dx1, dx, rows*k) && alike(dw1, dw, n*k),
                  "%s: other gradient bits where dx is x", what);
        }
        for (j = 0; j < 3 && rows; j++) {
            size_t r = j == 0 ? 0 : j == 1 ? rows/2 : rows - 1;
            dx1 = copy(dx0 + r*k, k);
            op->linear_backward(&c, dx1, NULL, NULL, dy + r*n, x + r*k, w, beta, 1, n, k);
            CHECK(alike(dx1, dx + r*k, k), "%s: dx of row %lu has other bits alone", what,
                  (unsigned long)r);
        }
    }
    release();
}

/* So many rows that rows times strips do not fit in 32 bits. */
static void test_linear_rows(void)
{
    const size_t rows = 2500000, k = 4;
    sru_context c = context(1);
    float *x = (float *)test_alloc(rows*k*4), *y = (float *)test_alloc(rows*k*4), w[16] = {0};
    size_t i, wrong = 0;
    for (i = 0; i < k; i++) w[i*k + (i + 1)%k] = 1;
    for (i = 0; i < rows*k; i++) x[i] = (float)(i%250);
    CHECK(op->linear_forward(&c, y, x, w, SRU_PLAIN, NULL, rows, k, k) == SRU_OK, "%s", message);
    for (i = 0; i < rows*k; i++) wrong += !same(&y[i], &x[i/k*k + (i + 1)%k], 4);
    CHECK(!wrong, "linear: %lu of %lu rows are wrong", (unsigned long)wrong, (unsigned long)rows);
    free(x);
    free(y);
}

/* v rounded to the nearest bfloat16, of two as near to the even one. Denormals count as 0. */
static float nearest(float v)
{
    const uint32_t bits = test_bits_at(&v);
    if (is_nan(&v)) return v;
    test_set_bits(&v, (bits & 0x7fffffff) < 0x00800000 ? 0
                      : (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
    return v;
}

/* Numbers times 1, in every place: a row or a column of either factor, the first or the second of a
   pair. */
static void test_rounding(void)
{
    enum { N = 67 };
    static const uint32_t edges[] = {0, 1, 0x007fffff, 0x00800000, 0x3f808000, 0x3f818000,
        0x3f808001, 0x3f807fff, 0x3f817fff, 0x3fffffff, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff,
        0x7f800000, 0x7f800001, 0x7fffffff, 0x7fc00000};
    sru_context c = context(1);
    float *v = zeros(N), *x = zeros(2*N), *y = zeros(N), one[2] = {1, 1};
    int turn, place;
    size_t i;
    for (turn = 0; turn < 400; turn++) {
        for (i = 0; i < N; i++) {
            uint32_t bits = (uint32_t)test_bits();
            if (!turn) bits = edges[i%COUNT(edges)] | (i < COUNT(edges) ? 0 : 0x80000000u);
            if (turn & 1) bits = (bits & 0xffff0001u) | 0x8000;
            test_set_bits(&v[i], bits);
        }
        for (place = 0; place < 6; place++) {
            size_t wrong = 0, pairs = place > 3;
            memset(x, 0, 2*N*sizeof *x);
            memset(y, 0, N*sizeof *y);
            for (i = 0; i < N && pairs; i++) x[2*i + (size_t)(place - 4)] = v[i];
            if (place == 0) op->linear_forward(&c, y, v, one, SRU_PLAIN, NULL, N, 1, 1);
            if (place == 1) op->linear_forward(&c, y, one, v, SRU_PLAIN, NULL, 1, N, 1);
            if (place == 2) op->linear_backward(&c, NULL, y, NULL, v, one, NULL, 0, 1, N, 1);
            if (place == 3) op->linear_backward(&c, NULL, y, NULL, one, v, NULL, 0, 1, 1, N);
            if (pairs) op->linear_forward(&c, y, x, one, SRU_PLAIN, NULL, N, 1, 2);
            for (i = 0; i < N; i++) {
                const float want = nearest(v[i]);
                wrong += !(y[i] == want || (is_nan(&y[i]) && is_nan(&v[i])));
            }
            CHECK(!wrong, "bfloat16: %lu of %d numbers are rounded otherwise, place %d",
                  (unsigned long)wrong, N, place);
        }
    }
    release();
}

/* Gradients over many rows of one sign, where a single float sum would be off by 6e-4 and 8e-4. The
   factors of dw are exact in bfloat16. */
static void test_linear_long(void)
{
    enum { ROWS = 65536, N = 3, K = 20 };
    const float factors[] = { 131/128.0f, 203/2048.0f };
    const double product = (double)factors[0]*(double)factors[1]*(double)ROWS;
    float *dy = zeros(ROWS*N), *x = zeros(ROWS*K), dw[N*K] = { 0 }, db[N] = { 0, 0, 0 };
    const double sum = 0.1*(double)ROWS;
    sru_context c = context(1);
    size_t i;
    for (i = 0; i < ROWS*N; i++) dy[i] = 0.1f;
    CHECK(op->linear_backward(&c, NULL, NULL, db, dy, NULL, NULL, 0, ROWS, N, 0) == SRU_OK, "%s",
          message);
    for (i = 0; i < N; i++)
        CHECK(fabs((double)db[i]/sum - 1) < 5e-5, "the bias has %g, not %g", (double)db[i], sum);
    for (i = 0; i < ROWS*N; i++) dy[i] = factors[0];
    for (i = 0; i < ROWS*K; i++) x[i] = factors[1];
    CHECK(op->linear_backward(&c, NULL, dw, NULL, dy, x, NULL, 0, ROWS, N, K) == SRU_OK, "%s",
          message);
    for (i = 0; i < N*K; i++)
        CHECK(fabs((double)dw[i]/product - 1) < 5e-5, "weight %lu has %g, not %g",
              (unsigned long)i, (double)dw[i], product);
    release();
}

static void test_linear(void)
{
    const size_t most = test_brief() ? 4000000 : (size_t)-1;
    size_t i;
    for (i = 0; i < COUNT(linear_shapes); i++) {
        const size_t *s = linear_shapes[i];
        for (misaligned = 0; misaligned < 2; misaligned++) {
            if (s[0]*s[1]*s[2] < (misaligned ? most : 400000)) test_linear_shape(s[0], s[1], s[2]);
        }
    }
    misaligned = 0;
    test_linear_rows();
    test_linear_long();
}

/* ---- scan ----------------------------------------------------------------------------------- */

/* A scan by the library, and the same by the oracle. */
typedef struct pair {
    sru_scan   s;
    naive_scan o;
    char       what[160];
} pair;

static size_t rows_of(const sru_scan *s)
{
    return s->T*s->B;
}

/* SSRU has no reset gate. */
static size_t gates_of(const sru_scan *s)
{
    return s->K == 2 ? 1 : 2;
}

static pair new_pair(size_t T, size_t B, size_t N, size_t I, unsigned flags)
{
    pair p;
    sru_scan *s = &p.s;
    naive_scan *o = &p.o;
    size_t rows = T*B, KN, GN, i;
    memset(&p, 0, sizeof p);
    s->T = T;
    s->B = B;
    s->N = N;
    s->A = I;
    s->K = (flags >> 17 & 3) == 3 ? 2 : flags & 1 ? 4 : 3;
    s->bidirectional = N%2 == 0 && (flags >> 1 & 1);
    s->use_tanh = s->K > 2 && (flags >> 2 & 1);
    s->scale_x = flags >> 3 & 1 ? 1.7f : 0;
    KN = (size_t)s->K*N;
    GN = gates_of(s)*N;
    if (flags >> 4 & 3) s->x = s->K < 4 ? randoms(rows*N) : junk(rows*N);  /* not read */
    if (flags >> 6 & 3) s->v = randoms(GN);
    if (flags >> 8 & 3) s->bias = randoms(GN);
    if (!(flags >> 10 & 3)) s->vt = randoms(rows*GN);
    if (flags >> 12 & 1) s->mask_c = randoms(B*N);
    if (flags >> 13 & 1) {
        uint8_t *pad = (uint8_t *)keep(test_alloc(rows));
        for (i = 0; i < rows; i++) pad[i] = test_bits()%3 == 0;
        s->mask_pad = pad;
    }
    if (flags >> 14 & 3) s->c0 = randoms(B*N);
    sprintf(p.what, "scan T %lu B %lu N %lu I %lu K %d%s%s%s%s%s%s%s%s%s%s%s", (unsigned long)T,
            (unsigned long)B, (unsigned long)N, (unsigned long)I, s->K,
            s->bidirectional ? " bidirectional" : "", s->use_tanh ? " tanh" : "",
            s->x && s->K < 4 ? " x" : "", s->scale_x > 0 ? " scale" : "", s->v ? " v" : "",
            s->bias ? " bias" : "", s->vt ? " vt" : "", s->mask_c ? " mask_c" : "",
            s->mask_pad ? " mask_pad" : "", s->c0 ? " c0" : "", misaligned ? " misaligned" : "");

    o->T = T;
    o->B = B;
    o->N = N;
    o->I = I;
    o->K = s->K;
    o->bidirectional = s->bidirectional;
    o->use_tanh = s->use_tanh;
    o->scale_x = s->scale_x > 0 ? (double)s->scale_x : 1;
    if (s->x && s->K < 4) o->x = wide(s->x, rows*N);
    if (s->v) o->v = wide(s->v, GN);
    if (s->bias) o->bias = wide(s->bias, GN);
    if (s->vt) o->vt = wide(s->vt, rows*GN);
    if (s->mask_c) o->mask_c = wide(s->mask_c, B*N);
    o->mask_pad = s->mask_pad;
    if (s->c0) o->c0 = wide(s->c0, B*N);
    o->u = reals(rows*KN);
    o->h = reals(rows*N);
    o->c = reals(rows*N);
    o->cT = reals(B*N);
    return p;
}

/* Gives a scan new outputs, in which what it leaves unwritten is NaN. */
static void fresh(sru_scan *s, int tape)
{
    s->h = junk(rows_of(s)*s->N);
    s->cT = junk(s->B*s->N);
    s->c = tape ? junk(rows_of(s)*s->N) : NULL;
    if (s->w) s->u = tape ? junk(rows_of(s)*(size_t)s->K*s->N) : NULL;
}

static int run_scan(const sru_scan *s, int threads, const char *what)
{
    sru_context c = context(threads);
    return CHECK(op->scan_forward(&c, s) == SRU_OK, "%s: %s", what, message);
}

/* Compares results with the oracle's. Gates are of size 1; in each step they add a few roundings,
   which the recurrence forgets again: about 1e-7 of the norm was seen, 2e-6 is allowed. */
static void check_results(const sru_scan *s, const naive_scan *o, const char *what,
                          const char *form)
{
    size_t n = rows_of(s)*s->N;
    CHECK(distance(s->h, o->h, n) <= 2e-6, "%s %s: h is off by %g", what, form,
          distance(s->h, o->h, n));
    CHECK(distance(s->cT, o->cT, s->B*s->N) <= 2e-6, "%s %s: cT is off by %g", what, form,
          distance(s->cT, o->cT, s->B*s->N));
    if (s->c) {
        CHECK(distance(s->c, o->c, n) <= 2e-6, "%s %s: c is off by %g", what, form,
              distance(s->c, o->c, n));
    }
}

static int same_results(const sru_scan *a, const sru_scan *b)
{
    return alike(a->h, b->h, rows_of(a)*a->N) && alike(a->cT, b->cT, a->B*a->N);
}

/* The weights of a layer, packed as K groups for each direction; real may be NULL. */
static void *packed_layer(sru_type type, const float *w, double *real, const sru_scan *s)
{
    size_t groups = (size_t)s->K*(s->bidirectional ? 2 : 1), D = s->N/(s->bidirectional ? 2 : 1);
    size_t step = D*s->A, g, bytes;
    sru_context c = context(1);
    char *all;
    bytes = op->pack(&c, NULL, type, NULL, D, s->A);
    if (!bytes && step) return NULL;
    all = (char *)zeros((bytes*groups + 3)/4);
    for (g = 0; g < groups; g++) {
        void *part = packed(type, w + g*step, real ? real + g*step : NULL, D, s->A);
        if (bytes) memcpy(all + g*bytes, part, bytes);
    }
    return all;
}

/* The part of a scan with steps from ... to-1, which starts where the part before it has ended. */
static sru_scan part(const sru_scan *s, size_t from, size_t to, float *c)
{
    sru_scan q = *s;
    q.T = to - from;
    if (q.a) q.a += from*s->B*s->A;
    if (q.u) q.u += from*s->B*(size_t)s->K*s->N;
    if (q.x) q.x += from*s->B*s->N;
    if (q.vt) q.vt += from*s->B*gates_of(s)*s->N;
    if (q.mask_pad) q.mask_pad += from*s->B;
    q.h += from*s->B*s->N;
    if (q.c) q.c += from*s->B*s->N;
    q.c0 = q.cT = c;
    return q;
}

/* Column block b of an array (T,B,n), alone. */
static float *sequence(const float *a, size_t T, size_t B, size_t b, size_t n)
{
    float *one;
    size_t t;
    if (!a) return NULL;
    one = zeros(T*n);
    for (t = 0; t < T; t++) memcpy(one + t*n, a + (t*B + b)*n, n*sizeof *a);
    return one;
}

/* Sequence b of a scan, alone. */
static sru_scan alone(const sru_scan *s, size_t b)
{
    const size_t T = s->T, B = s->B, N = s->N;
    sru_scan q = *s;
    q.B = 1;
    q.a = sequence(s->a, T, B, b, s->A);
    q.u = sequence(s->u, T, B, b, (size_t)s->K*N);
    q.x = sequence(s->x, T, B, b, N);
    q.vt = sequence(s->vt, T, B, b, gates_of(s)*N);
    q.c = sequence(s->c, T, B, b, N);
    q.dh = sequence(s->dh, T, B, b, N);
    if (s->mask_c) q.mask_c += b*N;
    if (s->c0) q.c0 += b*N;
    if (s->mask_pad) {
        uint8_t *pad = (uint8_t *)keep(test_alloc(T));
        size_t t;
        for (t = 0; t < T; t++) pad[t] = s->mask_pad[t*B + b];
        q.mask_pad = pad;
    }
    return q;
}

/* Checks what is true of a scan in any form of its product; s has run, and holds its results. */
static void test_scan_bits(const sru_scan *s, const char *what, const char *form)
{
    size_t rows = rows_of(s), N = s->N, T = s->T, B = s->B, i, b, t;
    sru_scan q;
    int threads;
    for (threads = 2; threads <= TEST_THREADS; threads++) {
        q = *s;
        fresh(&q, threads == 2);
        run_scan(&q, threads, what);
        CHECK(same_results(&q, s), "%s %s: other bits with %d threads", what, form, threads);
    }
    /* cT in place of c0, with sequences further apart, as in a model's state */
    {
        size_t ldc = N + 3;
        float *state = randoms(B*ldc), *before = copy(state, B*ldc);
        int kept = 1;
        for (b = 0; b < B; b++) {
            for (i = 0; i < N; i++) state[b*ldc + i] = s->c0 ? s->c0[b*N + i] : 0;
        }
        q = *s;
        fresh(&q, 0);
        q.ldc = ldc;
        q.c0 = q.cT = state;
        run_scan(&q, 1, what);
        CHECK(alike(q.h, s->h, rows*N), "%s %s: other bits with ldc", what, form);
        for (b = 0; b < B; b++) {
            kept = kept && alike(state + b*ldc, s->cT + b*N, N)
                && same(state + b*ldc + N, before + b*ldc + N, 3*sizeof *state);
        }
        CHECK(kept, "%s %s: state in place is wrong", what, form);
    }
    if (!s->bidirectional) {
        /* in place: h on x, on a, on both */
        size_t in;
        for (in = 1; in < 4; in++) {
            float *x = in & 1 ? s->x ? copy(s->x, rows*N) : NULL : NULL, *a = NULL;
            if ((in & 1) && !x) continue;
            if (in & 2) {
                if (!s->w || s->A != N) continue;
                a = in == 3 ? x : copy(s->a, rows*N);
            }
            if (in == 3 && !same(s->a, s->x, rows*N*sizeof *x)) continue;
            q = *s;
            fresh(&q, 0);
            if (x) q.x = x;
            if (a) q.a = a;
            q.h = x ? x : a;
            run_scan(&q, 2, what);
            CHECK(same_results(&q, s), "%s %s: other bits in place, h is %s", what, form,
                  in == 1 ? "x" : in == 2 ? "a" : "x and a");
        }
        /* chunks: two, then single steps */
        for (i = 0; i < 2 && T > 1 && T*B < 2000; i++) {
            float *c = zeros(B*N), *tape, *h;
            if (s->c0) memcpy(c, s->c0, B*N*sizeof *c);
            q = *s;
            fresh(&q, i == 0);
            tape = q.c;
            h = q.h;
            for (t = 0; t < T;) {
                size_t to = i ? t + 1 : t ? T : 1 + (size_t)(test_bits()%(T - 1));
                sru_scan chunk = part(&q, t, to, c);
                run_scan(&chunk, 1, what);
                t = to;
            }
            CHECK(alike(h, s->h, rows*N) && alike(c, s->cT, B*N), "%s %s: other bits in %s", what,
                  form, i ? "single steps" : "two chunks");
            if (tape && s->c) CHECK(alike(tape, s->c, rows*N), "%s %s: other c", what, form);
        }
    }
    for (b = 0; b < B && B > 1 && T*B < 2000; b += B - 1) {     /* the first and the last */
        q = alone(s, b);
        fresh(&q, 0);
        run_scan(&q, 1, what);
        CHECK(alike(q.h, sequence(s->h, T, B, b, N), T*N) && alike(q.cT, s->cT + b*N, N),
              "%s %s: sequence %lu has other bits alone", what, form, (unsigned long)b);
    }
}

typedef struct scan_grads {
    float *dc, *du, *dx, *da, *dvt, *dw, *dv, *dbias;
} scan_grads;

/* A backward scan with gradients of its own, which start as those of `from`; wanted: a bit each. */
static scan_grads run_backward(sru_scan s, const scan_grads *from, unsigned wanted, int threads,
                               const char *what)
{
    size_t rows = rows_of(&s), N = s.N, KN = (size_t)s.K*N, GN = gates_of(&s)*N;
    sru_context c = context(threads);
    scan_grads g;
    memset(&g, 0, sizeof g);
    g.du = junk(rows*KN);
    if (s.x && s.K < 4) g.dx = junk(rows*N);
    if ((wanted & 1) && from->dc) g.dc = copy(from->dc, s.B*N);
    if ((wanted & 2) && s.w) g.da = junk(rows*s.A);
    if ((wanted & 4) && s.vt) g.dvt = junk(rows*GN);
    if ((wanted & 8) && s.w) g.dw = copy(from->dw, KN*s.A);
    if (wanted & 16) g.dv = copy(from->dv, GN);
    if (wanted & 32) g.dbias = copy(from->dbias, GN);
    if (wanted & 64) {      /* du on u */
        g.du = copy(s.u, rows*KN);
        s.u = g.du;
    }
    s.dc = g.dc, s.du = g.du, s.dx = g.dx, s.da = g.da;
    s.dvt = g.dvt, s.dw = g.dw, s.dv = g.dv, s.dbias = g.dbias;
    if (!g.dx) s.dx = junk(rows*N);
    CHECK(op->scan_backward(&c, &s) == SRU_OK, "%s: backward: %s", what, message);
    if (!g.dx) {
        CHECK(same(s.dx, junk(rows*N), rows*N*sizeof(float)), "%s: dx is not used, but set", what);
    }
    return g;
}

static int same_grad(const float *a, const float *b, size_t n)
{
    return !a || !b || alike(a, b, n);
}

static int same_grads(const sru_scan *s, const scan_grads *a, const scan_grads *b)
{
    size_t rows = rows_of(s), N = s->N, KN = (size_t)s->K*N, GN = gates_of(s)*N;
    return same_grad(a->dc, b->dc, s->B*N) && same_grad(a->du, b->du, rows*KN)
        && same_grad(a->dx, b->dx, rows*N) && same_grad(a->da, b->da, rows*s->A)
        && same_grad(a->dvt, b->dvt, rows*GN) && same_grad(a->dw, b->dw, KN*s->A)
        && same_grad(a->dv, b->dv, GN) && same_grad(a->dbias, b->dbias, GN);
}

/* Gradients in float32 are sums, over steps, of products of results, each a few roundings off. */
static void check_grad(const char *what, const char *name, const float *a, const double *b,
                       size_t n)
{
    if (a) CHECK(distance(a, b, n) <= 5e-6, "%s: %s is off by %g", what, name, distance(a, b, n));
}

/* If products take bfloat16, the oracle's get what was really multiplied: du, rounded. */
static void multiply_rounded(naive_scan *o, const float *du, const float *dw)
{
    size_t n = o->T*o->B*(size_t)o->K*o->N, i;
    double *r = reals(n);
    if (!bf16 || !o->w) return;
    for (i = 0; i < n; i++) r[i] = (double)nearest(du[i]);
    o->dw = wide(dw, (size_t)o->K*o->N*o->I);
    naive_linear_backward(o->da, o->dw, NULL, r, o->a, o->w, 0, o->T*o->B, (size_t)o->K*o->N, o->I);
}

/* A copy of an array (T,B,n) with NaN at padded steps; NULL stays NULL. */
static float *spoilt(const sru_scan *s, const float *a, size_t n)
{
    float *b = a ? copy(a, rows_of(s)*n) : NULL;
    size_t i;
    for (i = 0; i < rows_of(s) && b && s->mask_pad; i++) {
        if (s->mask_pad[i]) memset(b + i*n, 0xff, n*sizeof *b);
    }
    return b;
}

/* s and o have run forward, and have kept what backward needs. */
static void test_scan_backward(sru_scan s, naive_scan o, const char *what)
{
    size_t rows = rows_of(&s), N = s.N, KN = (size_t)s.K*N, GN = gates_of(&s)*N, b;
    scan_grads from, g, other;
    unsigned wanted;
    s.dh = spoilt(&s, randoms(rows*N), N);
    memset(&from, 0, sizeof from);
    from.dc = randoms(s.B*N);
    from.dw = randoms(KN*s.A);
    from.dv = randoms(GN);
    from.dbias = randoms(GN);
    o.dh = wide(s.dh, rows*N);
    o.dc = wide(from.dc, s.B*N);
    o.dw = wide(from.dw, KN*s.A);
    o.dv = wide(from.dv, GN);
    o.dbias = wide(from.dbias, GN);
    o.du = reals(rows*KN);
    o.dx = reals(rows*N);
    o.da = reals(rows*s.A);
    if (s.vt) o.dvt = reals(rows*GN);
    naive_scan_backward(&o);
    g = run_backward(s, &from, 63, 1, what);
    multiply_rounded(&o, g.du, from.dw);
    check_grad(what, "dc", g.dc, o.dc, s.B*N);
    check_grad(what, "du", g.du, o.du, rows*KN);
    check_grad(what, "dx", g.dx, o.dx, rows*N);
    check_grad(what, "da", g.da, o.da, rows*s.A);
    check_grad(what, "dvt", g.dvt, o.dvt, rows*GN);
    check_grad(what, "dw", g.dw, o.dw, KN*s.A);
    check_grad(what, "dv", g.dv, o.dv, GN);
    check_grad(what, "dbias", g.dbias, o.dbias, GN);

    other = run_backward(s, &from, 63, 2, what);
    CHECK(same_grads(&s, &g, &other), "%s: other gradient bits with 2 threads", what);
    other = run_backward(s, &from, 63 + 64, 3, what);
    CHECK(same_grads(&s, &g, &other), "%s: other gradient bits with 3 threads, du on u", what);
    for (wanted = 2; wanted < 64; wanted *= 2) {
        other = run_backward(s, &from, 63 - wanted, 1, what);
        CHECK(same_grads(&s, &g, &other), "%s: other gradient bits without %u", what, wanted);
        other = run_backward(s, &from, 1 + wanted, 1, what);
        CHECK(same_grads(&s, &g, &other), "%s: other gradient bits with only %u", what, wanted);
    }
    for (b = 0; b < s.B && s.B > 1 && rows < 2000; b += s.B - 1) {
        scan_grads start = from;
        start.dc += b*N;
        other = run_backward(alone(&s, b), &start, 63, 1, what);
        CHECK(alike(other.dc, g.dc + b*N, N)
              && alike(other.du, sequence(g.du, s.T, s.B, b, KN), s.T*KN)
              && same_grad(other.dx, sequence(g.dx, s.T, s.B, b, N), s.T*N)
              && same_grad(other.da, sequence(g.da, s.T, s.B, b, s.A), s.T*s.A)
              && same_grad(other.dvt, sequence(g.dvt, s.T, s.B, b, GN), s.T*GN),
              "%s: sequence %lu has other gradient bits alone", what, (unsigned long)b);
    }
    /* without dc there is no gradient from later steps, as if dc were 0 */
    other = run_backward(s, &from, 62, 1, what);
    memset(from.dc, 0, s.B*N*sizeof(float));
    g = run_backward(s, &from, 63, 1, what);
    CHECK(same_grads(&s, &g, &other), "%s: dc NULL is not dc 0", what);
    /* dc with a distance between sequences */
    {
        size_t ldc = N + 5;
        float *state = randoms(s.B*ldc), *cells = randoms(s.B*ldc);
        float *before = copy(state, s.B*ldc);
        int equal = 1;
        sru_context c = context(1);
        sru_scan q = s;
        for (b = 0; b < s.B; b++) {
            memset(state + b*ldc, 0, N*sizeof *state);
            if (s.c0) memcpy(cells + b*ldc, s.c0 + b*N, N*sizeof *cells);
        }
        q.ldc = ldc;
        if (s.c0) q.c0 = cells;
        q.cT = NULL;
        q.dc = state;
        q.du = junk(rows*KN);
        q.dx = g.dx ? junk(rows*N) : NULL;
        if (s.vt) q.dvt = junk(rows*GN);
        CHECK(op->scan_backward(&c, &q) == SRU_OK, "%s: %s", what, message);
        for (b = 0; b < s.B; b++) {
            equal = equal && alike(state + b*ldc, g.dc + b*N, N)
                 && same(state + b*ldc + N, before + b*ldc + N, 5*sizeof *state);
        }
        CHECK(equal && alike(q.du, g.du, rows*KN), "%s: other gradients with ldc", what);
    }
    /* da on dx is the sum of both, which a layer's input gets if it is also the skip term */
    if (s.w && s.x && s.K < 4 && s.A == N) {
        sru_context c = context(2);
        sru_scan q = s;
        size_t i;
        q.du = junk(rows*KN);
        q.dx = q.da = junk(rows*N);
        q.dc = copy(from.dc, s.B*N);
        if (s.vt) q.dvt = junk(rows*GN);
        CHECK(op->scan_backward(&c, &q) == SRU_OK, "%s: %s", what, message);
        memset(o.dc, 0, s.B*N*sizeof(double));
        naive_scan_backward(&o);
        multiply_rounded(&o, q.du, from.dw);
        for (i = 0; i < rows*N; i++) o.dx[i] += o.da[i];
        check_grad(what, "the sum of da and dx", q.da, o.dx, rows*N);
    }
    /* dx, da or both on dh: backward reads each value before it writes there */
    for (b = 1; b < 4; b++) {
        sru_context c = context(1 + (int)b%3);
        sru_scan q = s, apart;
        float *on;
        if (((b & 1) && !(s.x && s.K < 4)) || ((b & 2) && !(s.w && s.A == N))) continue;
        if (s.vt) q.dvt = junk(rows*GN);
        q.du = junk(rows*KN);
        q.dc = copy(from.dc, s.B*N);
        q.dx = b & 1 ? junk(rows*N) : NULL;
        q.da = b == 3 ? q.dx : b & 2 ? junk(rows*N) : NULL;
        apart = q;
        q.dc = copy(from.dc, s.B*N);
        q.dh = on = copy(s.dh, rows*N);
        if (b & 1) q.dx = on;
        if (b & 2) q.da = on;
        CHECK(op->scan_backward(&c, &apart) == SRU_OK, "%s: %s", what, message);
        CHECK(op->scan_backward(&c, &q) == SRU_OK, "%s: %s", what, message);
        CHECK(alike(on, b & 1 ? apart.dx : apart.da, rows*N) && alike(q.dc, apart.dc, s.B*N),
              "%s: other gradients on dh (%d)", what, (int)b);
    }
}

static void test_scan_shape(size_t T, size_t B, size_t N, size_t I, unsigned flags)
{
    pair p = new_pair(T, B, N, I, flags);
    size_t rows = T*B, KN = (size_t)p.s.K*N, i;
    float *w = weights(KN, I);
    double *R = reals(KN*I);
    sru_scan whole, q;
    int type;

    /* the product inside. Scaled so that u is of size 1 */
    for (i = 0; i < KN*I; i++) w[i] *= (float)sqrt(3/(double)I);
    as_multiplied(w, KN*I);
    p.s.a = p.s.x && p.s.K < 4 && I == N && (flags & 0x10000) ? p.s.x : randoms(rows*I);
    p.s.w = w;
    p.o.a = wide(p.s.a, rows*I);
    p.o.w = wide(w, KN*I);
    naive_scan_forward(&p.o);
    whole = p.s;
    fresh(&whole, 1);
    run_scan(&whole, 1, p.what);
    check_results(&whole, &p.o, p.what, "PLAIN");
    CHECK(distance(whole.u, p.o.u, rows*KN) <= 2e-6, "%s: u is off by %g", p.what,
          distance(whole.u, p.o.u, rows*KN));
    q = p.s;
    fresh(&q, 0);
    run_scan(&q, 1, p.what);
    CHECK(same_results(&q, &whole), "%s: other bits without tape", p.what);
    test_scan_bits(&q, p.what, "PLAIN");
    fresh(&q, 1);
    q.u = NULL;
    run_scan(&q, 1, p.what);
    CHECK(same_results(&q, &whole) && alike(q.c, whole.c, rows*N), "%s: other bits with c and "
          "without u", p.what);
    fresh(&q, 1);
    q.c = NULL;
    run_scan(&q, 1, p.what);
    CHECK(same_results(&q, &whole) && alike(q.u, whole.u, rows*KN), "%s: other bits with u and "
          "without c", p.what);
    test_scan_backward(whole, p.o, p.what);

    for (type = SRU_F32; type <= SRU_Q8; type++) {
        sru_scan taped = p.s;
        const int exact = type == SRU_F32 && !bf16;     /* it has the bits of PLAIN */
        taped.type = (sru_type)type;
        taped.w = packed_layer(taped.type, w, exact ? NULL : R, &p.s);
        if (!taped.w) continue;
        q = taped;
        fresh(&taped, 1);
        run_scan(&taped, 1, p.what);
        fresh(&q, 0);
        run_scan(&q, 1, p.what);
        CHECK(same_results(&q, &taped), "%s %s: other bits without tape", p.what,
              type_names[type]);
        if (exact) {
            CHECK(same_results(&q, &whole), "%s: F32 has other bits than PLAIN", p.what);
        } else {
            naive_scan o = p.o;
            o.w = R;
            naive_scan_forward(&o);
            check_results(&taped, &o, p.what, type_names[type]);
        }
        test_scan_bits(&q, p.what, type_names[type]);
    }

    /* u given: the bare recurrence, the same bits, whatever lies at padded steps */
    q = whole;
    q.w = NULL;
    q.a = NULL;
    q.A = 0;
    q.u = spoilt(&q, q.u, KN);
    q.x = spoilt(&q, q.x, N);
    q.vt = spoilt(&q, q.vt, gates_of(&q)*N);
    fresh(&q, 1);
    run_scan(&q, 1, p.what);
    CHECK(same_results(&q, &whole) && alike(q.c, whole.c, rows*N),
          "%s: other bits when u is given", p.what);
    p.o.w = NULL;
    p.o.u = wide(whole.u, rows*KN);
    naive_scan_forward(&p.o);
    check_results(&q, &p.o, p.what, "u given");
    test_scan_bits(&q, p.what, "u given");
    q.A = p.o.I = 0;
    test_scan_backward(q, p.o, p.what);
    release();
}

/* In SSRU, if c is 0, nothing flows back through max(c, 0). */
static void test_scan_zero(void)
{
    enum { N = 37 };
    sru_context c = context(1);
    sru_scan s;
    size_t i;
    memset(&s, 0, sizeof s);
    s.T = s.B = 1;
    s.N = N;
    s.K = 2;
    s.u = zeros(2*N);
    s.h = junk(N);
    s.c = junk(N);
    s.dh = randoms(N);
    s.du = junk(2*N);
    CHECK(op->scan_forward(&c, &s) == SRU_OK && op->scan_backward(&c, &s) == SRU_OK, "%s", message);
    for (i = 0; i < 2*N && s.du[i] == 0; i++) continue;
    CHECK(i == 2*N, "SSRU: du of c = 0 is %g", i < 2*N ? (double)s.du[i] : 0);
    release();
}

/* Column i of (rows,N), or NULL of NULL. */
static float *column(const float *a, size_t rows, size_t N, size_t i)
{
    float *b = a ? zeros(rows) : NULL;
    size_t r;
    for (r = 0; r < rows && b; r++) memcpy(b + r, a + r*N + i, sizeof *b);
    return b;
}

/* The same bits; b is column i of (rows,N). */
static int same_column(const float *a, const float *b, size_t rows, size_t N, size_t i)
{
    return !a || same(column(a, rows, N, i), b, rows*sizeof *a);
}

/* A unit gets the same bits whatever units are beside it: those that one vector holds, and that are
   computed side by side, depend on where it is. */
static void test_scan_units(void)
{
    const uint64_t state = test_random_state;
    size_t round, i;
    for (round = 0; round < 30; round++) {
        const size_t K = 2 + round%3, G = K == 2 ? 1 : 2, T = (size_t)(1 + test_bits()%9);
        const size_t N = (size_t)(1 + test_bits()%70);
        const unsigned with = (unsigned)test_bits();
        sru_context c = context(1);
        sru_scan s, one;
        memset(&s, 0, sizeof s);
        s.T = T;
        s.B = 1;
        s.N = N;
        s.K = (int)K;
        s.use_tanh = K > 2 && (with & 1);
        s.scale_x = 1.3f;
        s.u = randoms(T*K*N);
        s.x = with & 2 ? randoms(T*N) : NULL;
        s.v = with & 4 ? randoms(G*N) : NULL;
        s.bias = with & 8 ? randoms(G*N) : NULL;
        s.vt = with & 16 ? randoms(T*G*N) : NULL;
        s.mask_c = with & 32 ? randoms(N) : NULL;
        s.c0 = with & 64 ? randoms(N) : NULL;
        s.dh = randoms(T*N);
        s.dc = randoms(N);
        one = s;
        one.dc = copy(s.dc, N);
        s.h = junk(T*N);
        s.c = junk(T*N);
        s.du = junk(T*K*N);
        s.dx = s.x ? junk(T*N) : NULL;
        s.dvt = s.vt ? junk(T*G*N) : NULL;
        CHECK(op->scan_forward(&c, &s) == SRU_OK && op->scan_backward(&c, &s) == SRU_OK, "%s",
              message);
        for (i = 0; i < N; i++) {
            sru_scan o = one;
            o.N = 1;
            o.u = column(one.u, T*K, N, i);
            o.x = column(one.x, T, N, i);
            o.v = column(one.v, G, N, i);
            o.bias = column(one.bias, G, N, i);
            o.vt = column(one.vt, T*G, N, i);
            o.mask_c = column(one.mask_c, 1, N, i);
            o.c0 = column(one.c0, 1, N, i);
            o.dh = column(one.dh, T, N, i);
            o.dc = column(one.dc, 1, N, i);
            o.h = junk(T);
            o.c = junk(T);
            o.du = junk(T*K);
            o.dx = o.x ? junk(T) : NULL;
            o.dvt = o.vt ? junk(T*G) : NULL;
            CHECK(op->scan_forward(&c, &o) == SRU_OK && op->scan_backward(&c, &o) == SRU_OK, "%s",
                  message);
            CHECK(same_column(s.h, o.h, T, N, i) && same_column(s.c, o.c, T, N, i)
                  && same_column(s.du, o.du, T*K, N, i) && same_column(s.dc, o.dc, 1, N, i)
                  && (K == 4 || same_column(s.dx, o.dx, T, N, i))
                  && same_column(s.dvt, o.dvt, T*G, N, i), "K %lu, T %lu: unit %lu of %lu has "
                  "other bits alone, options %u", (unsigned long)K, (unsigned long)T,
                  (unsigned long)i, (unsigned long)N, with & 127);
        }
        release();
    }
    test_random_state = state;
}

/* Scratch memory of a scan in place for T steps. */
static size_t scan_memory(size_t T, size_t B, size_t N, int threads)
{
    sru_context c = context(threads);
    static float at[1];                 /* not touched: a call that measures computes nothing */
    size_t bytes = 0;
    sru_scan s;
    memset(&s, 0, sizeof s);
    c.measure = &bytes;
    s.T = T;
    s.B = B;
    s.N = s.A = N;
    s.K = 3;
    s.type = SRU_F32;
    s.w = s.a = s.x = s.h = s.cT = at;
    CHECK(op->scan_forward(&c, &s) == SRU_OK, "scan: %s", message);
    return bytes;
}

/* Memory for many steps is enough for fewer, whatever number of threads share these. */
static void test_scan_memory(void)
{
    int i;
    for (i = 0; i < 20000; i++) {
        size_t T = (size_t)(1 + test_bits()%200), fewer = (size_t)(1 + test_bits()%T);
        size_t B = (size_t)(1 + test_bits()%40), N = (size_t)(2 + test_bits()%100*2), many, few;
        int threads = (int)(1 + test_bits()%32);
        many = scan_memory(T, B, N, threads);
        few = scan_memory(fewer, B, N, threads);
        CHECK(many >= few, "scan T %lu B %lu N %lu, %d threads: %lu bytes, but %lu for T %lu",
              (unsigned long)T, (unsigned long)B, (unsigned long)N, threads, (unsigned long)many,
              (unsigned long)few, (unsigned long)fewer);
    }
}

static void test_scan(void)
{
    static const size_t Ts[] = {1, 2, 3, 5, 8, 17, 33}, Bs[] = {1, 2, 3, 5, 8};
    static const size_t Ns[] = {1, 2, 3, 7, 8, 15, 16, 17, 24, 31, 32, 33, 34, 48, 64, 66, 100};
    static const size_t Is[] = {1, 2, 5, 15, 16, 17, 32, 47, 64};
    int i;
    test_random_state = 3;
    test_scan_zero();
    test_scan_units();
    for (i = 0; i < test_cases(120); i++) {
        size_t T = Ts[test_bits()%COUNT(Ts)], B = Bs[test_bits()%COUNT(Bs)];
        size_t N = Ns[test_bits()%COUNT(Ns)];
        size_t I = test_bits()%2 ? N : Is[test_bits()%COUNT(Is)];
        misaligned = test_bits()%2;
        test_scan_shape(T, B, N, I, (unsigned)test_bits());
    }
    for (i = 0; i < test_cases(40); i++) {      /* few rows of whole panels */
        misaligned = (size_t)(i%2);
        test_scan_shape(1, (size_t)(i%5/2 + 1), (size_t)(i%4 + 1)*16, 20, (unsigned)test_bits());
    }
    for (i = 0; i < 12; i++) {          /* threads get parts of the sequences, of odd numbers */
        size_t N = Ns[COUNT(Ns) - 1 - (size_t)i%5];
        misaligned = (size_t)(i%2);
        test_scan_shape((size_t)(i%4 + 1), (size_t)(test_bits()%20 + 2), N, N,
                        (unsigned)test_bits() & ~3u);
    }
    for (i = 0; i < 6; i++) {           /* more rows than are computed at a time */
        size_t B = (size_t)(1 + test_bits()%9), N = Ns[test_bits()%9];
        misaligned = (size_t)(i%2);
        test_scan_shape((size_t)(260 + test_bits()%300)/B + 1, B, N, N, (unsigned)test_bits());
    }
    for (i = 0; i < 4; i++) {           /* nothing to do, but c passes */
        test_scan_shape(0, 3, 6, 5, (unsigned)test_bits() | 2);     /* in both directions */
        test_scan_shape(4, 0, 6, 5, (unsigned)test_bits());
        test_scan_shape(3, 2, 6, 0, (unsigned)test_bits());
        test_scan_shape(3, 2, 0, 5, (unsigned)test_bits());
    }
    misaligned = 0;
    test_scan_shape(500, 3, 18, 9, 0x1ffff);    /* more rows than are computed at a time */
    if (!test_brief()) test_scan_shape(2, 600, 17, 9, 0x1c5d4);
    misaligned = 1;
    test_scan_shape(31, 3, 200, 20, 0x0abcd);   /* more units */
    test_scan_shape(300, 1, 18, 18, 0x1fdf4);   /* rows in place */
    test_scan_shape(9, 3, 20, 530, 0x1abff);    /* longer sums */
    test_scan_shape(1, 1, 40, 600, 0x0d5d0);
    test_scan_shape(31, 3, 200, 20, 0x6abcd);   /* SSRU */
    if (!test_brief()) {
        test_scan_shape(29, 3, 140, 140, 0x1d550);
        test_scan_shape(11, 3, 90, 1040, 0x1abff);      /* weights that no cache holds */
        test_scan_shape(300, 1, 80, 80, 0x6fdf0);
    }
    misaligned = 0;
}

/* ---- Accuracy of sigmoid, tanh and exp ------------------------------------------------------ */

enum { BLOCK = 1 << 12 };

typedef struct accuracy {
    double abs, rel, ulp, abs_at, rel_at, ulp_at;
} accuracy;

/* Errors count if the true value is at least `least`: relative ones, and those in ulp, the distance
   between floats near the true value. */
static void measure(accuracy *a, double x, const float *got, double want, double least)
{
    double error = test_finite(got) ? fabs((double)*got - want) : 1e300;
    if (error > a->abs) a->abs = error, a->abs_at = x;
    if (fabs(want) < least) return;
    if (error > a->rel*fabs(want)) a->rel = error/fabs(want), a->rel_at = x;
    if (error > a->ulp*rounding*fabs(want)) {   /* an ulp is at least so much */
        int exponent;
        frexp(want, &exponent);
        error /= ldexp(1, exponent - 24);
        if (error > a->ulp) a->ulp = error, a->ulp_at = x;
    }
}

static void report(const char *name, accuracy a, double abs_limit, double ulp_limit)
{
    printf("    %-8s largest error %.3g (at %g), relative %.3g (at %g), %.2f ulp (at %g)\n", name,
           a.abs, a.abs_at, a.rel, a.rel_at, a.ulp, a.ulp_at);
    CHECK(a.abs <= abs_limit, "%s is off by %g at %.9g", name, a.abs, a.abs_at);
    CHECK(a.ulp <= ulp_limit, "%s is off by %g ulp at %.9g", name, a.ulp, a.ulp_at);
}

static void merge(accuracy *a, const accuracy *b)
{
    if (b->abs > a->abs) a->abs = b->abs, a->abs_at = b->abs_at;
    if (b->rel > a->rel) a->rel = b->rel, a->rel_at = b->rel_at;
    if (b->ulp > a->ulp) a->ulp = b->ulp, a->ulp_at = b->ulp_at;
}

/* exp(x) for x <= 0. The C library is slow where that underflows. */
static double small_exp(double x) { return x < -700 ? 0 : exp(x); }

typedef struct accuracies {
    accuracy sigmoid, tanh, exp;
    long nans, lost, failed;
} accuracies;

/* One step of a scan without a skip term and with the forget gate at 1 gives h = r*g(c0): that is
   sigmoid(u2) if c0 = 1, and tanh(c0) if r = 1. A softmax of (0, x) gives exp(x)/(1 + exp(x)).
   These are computed for every stride-th of the float32 numbers whose bits, as an integer, are at
   least `bits` and below `end`. */
static void measure_portion(accuracies *a, uint64_t bits, uint64_t end)
{
    float *u = (float *)test_alloc(13*BLOCK*sizeof(float)), *u_tanh = u + 3*BLOCK;
    float *one = u_tanh + 3*BLOCK, *h = one + BLOCK, *x = h + BLOCK, *y = x + BLOCK;
    float *dy = y + 2*BLOCK;
    int32_t *targets = (int32_t *)test_alloc(BLOCK*sizeof(int32_t));
    sru_context ctx;
    double loss;
    sru_scan s;
    size_t i, n;
    memset(&ctx, 0, sizeof ctx);
    ctx.op = op;
    ctx.threads = 1;
    memset(u, 0, 13*BLOCK*sizeof *u);
    memset(targets, 0, BLOCK*sizeof *targets);
    memset(&s, 0, sizeof s);
    for (i = 0; i < BLOCK; i++) {
        one[i] = 1;
        u[BLOCK + i] = u_tanh[BLOCK + i] = u_tanh[2*BLOCK + i] = 200;
    }
    s.T = s.B = 1;
    s.N = BLOCK;
    s.K = 3;
    s.h = h;
    while (bits < end && !a->failed) {
        for (n = 0; n < BLOCK && bits < end; n++, bits += stride) {
            test_set_bits(&x[n], (uint32_t)bits);
        }
        memcpy(u + 2*BLOCK, x, n*sizeof *x);
        s.u = u;
        s.c0 = one;
        s.use_tanh = 0;
        a->failed += op->scan_forward(&ctx, &s) != SRU_OK;
        for (i = 0; i < n; i++) {
            double v = (double)x[i], e;
            a->nans += is_nan(&x[i]);
            a->lost += is_nan(&x[i]) && !is_nan(&h[i]);
            if (!test_finite(&x[i])) continue;
            /* below 1.23e-38 = exp(-87.3), float32 runs out of bits */
            e = small_exp(-fabs(v));
            measure(&a->sigmoid, v, &h[i], v < 0 ? e/(1 + e) : 1/(1 + e), 1.23e-38);
        }
        s.u = u_tanh;
        s.c0 = x;
        s.use_tanh = 1;
        a->failed += op->scan_forward(&ctx, &s) != SRU_OK;
        for (i = 0; i < n; i++) {
            a->lost += is_nan(&x[i]) && !is_nan(&h[i]);
            if (!test_finite(&x[i])) continue;
            /* states below 1e-30 are taken for 0, so that none becomes denormal */
            measure(&a->tanh, (double)x[i], &h[i], tanh((double)x[i]), 1e-30);
        }
        if (bits <= 0x80000000u) continue;      /* of x and -x, one will do for exp */
        for (i = 0; i < n; i++) y[2*i + 1] = test_finite(&x[i]) ? -(float)fabs((double)x[i]) : 0;
        a->failed += op->softmax_loss(&ctx, &loss, dy, y, targets, 1, n, 2) != SRU_OK;
        for (i = 0; i < n; i++) {
            double e = small_exp((double)y[2*i + 1]);
            measure(&a->exp, (double)y[2*i + 1], &dy[2*i + 1], e/(1 + e), 1.23e-38);
        }
    }
    free(targets);
    free(u);
}

static void test_accuracy(void)
{
    enum { PORTIONS = 256 };
    const uint64_t portion = ((uint64_t)1 << 32)/PORTIONS;
    const time_t began = time(NULL);
    accuracies all;
    int p, done = 0;
    memset(&all, 0, sizeof all);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) if (stride == 1)
#endif
    for (p = 0; p < PORTIONS; p++) {
        const uint64_t first = (uint64_t)p*portion;
        accuracies a;
        memset(&a, 0, sizeof a);
        measure_portion(&a, (first + stride - 1)/stride*stride, first + portion);
#ifdef _OPENMP
#pragma omp critical
#endif
        {
            merge(&all.sigmoid, &a.sigmoid);
            merge(&all.tanh, &a.tanh);
            merge(&all.exp, &a.exp);
            all.nans += a.nans;
            all.lost += a.lost;
            all.failed += a.failed;
            done++;
            if (stride == 1) {
                fprintf(stderr, "\r    %3d %% of all numbers, %.0f s left ", 100*done/PORTIONS,
                        difftime(time(NULL), began)*(PORTIONS - done)/done);
                if (done == PORTIONS) fprintf(stderr, "\r%50s\r", "");
            }
        }
    }
    CHECK(!all.failed, "an operator fails");
    CHECK(all.nans > 0 && !all.lost, "%ld of %ld NaN became numbers", all.lost, all.nans);
    report("sigmoid", all.sigmoid, 1.2e-7, 3);
    report("tanh", all.tanh, 1.2e-7, 3);
    report("exp", all.exp, 1.2e-7, 3);
}

static void test_extremes(void)
{
    enum { N = 6 };
    /* infinity, the largest number, 0, and their negatives */
    static const uint32_t bits[N] = {0x7f800000, 0xff800000, 0x7f7fffff, 0xff7fffff, 0, 0x80000000};
    float u[3*N], u_tanh[3*N], one[N], x[N], h[N];
    sru_context ctx = context(1);
    sru_scan s;
    int i;
    memset(&s, 0, sizeof s);
    s.T = s.B = 1;
    s.K = 3;
    s.h = h;
    memcpy(x, bits, sizeof x);
    s.N = N;
    for (i = 0; i < N; i++) {
        one[i] = 1;
        u[i] = u_tanh[i] = 0;
        u[N + i] = u_tanh[N + i] = u_tanh[2*N + i] = 200;
        u[2*N + i] = x[i];
    }
    s.u = u;
    s.c0 = one;
    s.use_tanh = 0;
    CHECK(op->scan_forward(&ctx, &s) == SRU_OK, "%s", message);
    CHECK(h[0] == 1 && fabs((double)h[1]) < 1.2e-38 && h[2] == 1 && fabs((double)h[3]) < 1.2e-38
          && h[4] == 0.5f && h[5] == 0.5f,
          "sigmoid of inf, -inf, max, -max, 0, -0 is %g %g %g %g %g %g", (double)h[0],
          (double)h[1], (double)h[2], (double)h[3], (double)h[4], (double)h[5]);
    /* c - u0 overflows: tanh sees an infinity, or nearly */
    u_tanh[0] = x[3], u_tanh[1] = x[2];
    x[0] = x[2], x[1] = x[3];
    s.u = u_tanh;
    s.c0 = x;
    s.use_tanh = 1;
    CHECK(op->scan_forward(&ctx, &s) == SRU_OK, "%s", message);
    CHECK(h[0] == 1 && h[1] == -1 && h[2] == 1 && h[3] == -1 && h[4] == 0 && h[5] == 0,
          "tanh of inf, -inf, max, -max, 0, -0 is %g %g %g %g %g %g", (double)h[0], (double)h[1],
          (double)h[2], (double)h[3], (double)h[4], (double)h[5]);
}

/* ---- layer norm ----------------------------------------------------------------------------- */

static void test_layernorm_shape(size_t rows, size_t n)
{
    /* two numbers may be close by chance if there are few: 1/sqrt(1e-5) = 316 roundings of them */
    double tol = n < 8 ? 3e-5 : 2e-6;
    float *x = randoms(rows*n), *gain = randoms(n), *bias = randoms(n), *dy = randoms(rows*n);
    float *y = junk(rows*n), *stats = junk(rows*2), *z, *stats1;
    double *X = wide(x, rows*n), *G = wide(gain, n), *DY = wide(dy, rows*n), *Y = reals(rows*n);
    double *S = reals(rows*2);
    sru_context c = context(1);
    int threads, i;
    unsigned long R = (unsigned long)rows, M = (unsigned long)n;
    naive_layernorm_forward(Y, S, X, G, wide(bias, n), rows, n);
    CHECK(op->layernorm_forward(&c, y, stats, x, gain, bias, rows, n) == SRU_OK, "%s", message);
    CHECK(distance(y, Y, rows*n) <= tol, "layer norm (%lu,%lu) is off by %g", R, M,
          distance(y, Y, rows*n));
    if (n) {
        CHECK(test_error_double(stats, S, rows*2) <= tol, "layer norm (%lu,%lu): stats are off by "
              "%g", R, M, test_error_double(stats, S, rows*2));
    }
    for (threads = 1; threads <= TEST_THREADS; threads++) {
        c.threads = threads;
        z = copy(x, rows*n);
        stats1 = junk(rows*2);
        op->layernorm_forward(&c, z, threads == 1 ? NULL : stats1, z, gain, bias, rows, n);
        CHECK(same(z, y, rows*n*sizeof *z), "layer norm (%lu,%lu): other bits in place with %d "
              "threads", R, M, threads);
        CHECK(threads == 1 || same(stats, stats1, rows*2*sizeof *z), "layer norm (%lu,%lu): other "
              "stats with %d threads", R, M, threads);
    }
    c.threads = 1;
    for (i = 0; i < 2 && rows; i++) {
        size_t r = i ? rows - 1 : rows/2;
        z = junk(n);
        op->layernorm_forward(&c, z, NULL, x + r*n, gain, bias, 1, n);
        CHECK(same(z, y + r*n, n*sizeof *z), "layer norm (%lu,%lu): other bits alone", R, M);
    }
    for (i = 0; i < 2; i++) {
        float beta = i ? 1.0f : 0.0f;
        float *dx0 = i ? randoms(rows*n) : junk(rows*n), *dg0 = randoms(n), *db0 = randoms(n);
        float *dx = copy(dx0, rows*n), *dg = copy(dg0, n), *db = copy(db0, n);
        double *DX = i ? wide(dx0, rows*n) : reals(rows*n), *DG = wide(dg0, n), *DB = wide(db0, n);
        naive_layernorm_backward(DX, DG, DB, DY, X, G, S, (double)beta, rows, n);
        CHECK(op->layernorm_backward(&c, dx, dg, db, dy, x, gain, stats, beta, rows, n) == SRU_OK,
              "%s", message);
        CHECK(distance(dx, DX, rows*n) <= 5*tol && distance(dg, DG, n) <= 5*tol
              && distance(db, DB, n) <= 5*tol,
              "layer norm (%lu,%lu) beta %g: gradients are off by %g %g %g", R, M, (double)beta,
              distance(dx, DX, rows*n), distance(dg, DG, n), distance(db, DB, n));
        for (threads = 2; threads <= TEST_THREADS; threads++) {
            float *dx1 = copy(dx0, rows*n), *dg1 = copy(dg0, n), *db1 = copy(db0, n);
            c.threads = threads;
            op->layernorm_backward(&c, dx1, dg1, db1, dy, x, gain, stats, beta, rows, n);
            CHECK(same(dx1, dx, rows*n*sizeof *dx) && same(dg1, dg, n*sizeof *dg)
                  && same(db1, db, n*sizeof *db), "layer norm (%lu,%lu): other gradient bits with "
                  "%d threads", R, M, threads);
        }
        c.threads = 1;
        {
            float *dg1 = copy(dg0, n), *db1 = copy(db0, n);
            op->layernorm_backward(&c, NULL, dg1, NULL, dy, x, gain, stats, beta, rows, n);
            op->layernorm_backward(&c, NULL, NULL, db1, dy, x, gain, stats, beta, rows, n);
            CHECK(same(dg1, dg, n*sizeof *dg) && same(db1, db, n*sizeof *db), "layer norm "
                  "(%lu,%lu): other gradient bits one at a time", R, M);
        }
        if (rows) {
            float *dx1 = copy(dx0 + (rows - 1)*n, n);
            op->layernorm_backward(&c, dx1, NULL, NULL, dy + (rows - 1)*n, x + (rows - 1)*n, gain,
                                   stats + (rows - 1)*2, beta, 1, n);
            CHECK(same(dx1, dx + (rows - 1)*n, n*sizeof *dx), "layer norm (%lu,%lu): other "
                  "gradient bits alone", R, M);
        }
        if (!i) {
            float *dx1 = copy(dy, rows*n);
            op->layernorm_backward(&c, dx1, NULL, NULL, dx1, x, gain, stats, 0, rows, n);
            CHECK(same(dx1, dx, rows*n*sizeof *dx), "layer norm (%lu,%lu): other gradient bits in "
                  "place", R, M);
        }
    }
    release();
}

static void test_layernorm(void)
{
    static const size_t rows[] = {0, 1, 3, 17, 130}, ns[] = {0, 1, 2, 3, 15, 16, 17, 31, 64, 100,
                                                             257, 1100, 3100};
    sru_context c = context(1);
    float *x, *gain, *bias, *y, *stats, *dx, *dg, *db;
    double *Y, *S;
    size_t i, j, n = 64;
    for (i = 0; i < COUNT(rows); i++) {
        for (j = 0; j < COUNT(ns); j++) {
            misaligned = (i + j)%2;
            test_layernorm_shape(rows[i], ns[j]);
        }
    }
    misaligned = 0;
    /* numbers far from 0: the variance must not be the difference of two large squares. The mean is
       rounded to 1000*2^-24 = 6e-5, and so is what remains of x */
    x = randoms(3*n), gain = randoms(n), bias = randoms(n), y = junk(3*n), stats = junk(6);
    for (i = 0; i < 3*n; i++) x[i] = 1000 + x[i];
    Y = reals(3*n), S = reals(6);
    naive_layernorm_forward(Y, S, wide(x, 3*n), wide(gain, n), wide(bias, n), 3, n);
    op->layernorm_forward(&c, y, stats, x, gain, bias, 3, n);
    CHECK(distance(y, Y, 3*n) < 3e-4, "layer norm around 1000 is off by %g", distance(y, Y, 3*n));

    /* constant rows, as in silence: nothing but the bias remains */
    for (j = 1; j < 600; j += j < 90 ? 1 : 37) {
        float *level = randoms(3*j), *out = junk(3*j);
        for (i = 0; i < 3*j; i++) level[i] = i < j ? 0.1f : i < 2*j ? -23.02585f : 1e5f*x[0];
        op->layernorm_forward(&c, out, NULL, level, randoms(j), zeros(j), 3, j);
        for (i = 0; i < 3*j && !(out[i] < 0 || out[i] > 0); i++) {}
        CHECK(i == 3*j, "layer norm of %lu equal numbers is not 0", (unsigned long)j);
        /* and large ones, beside which (0 - mean)/deviation would be infinite */
        for (i = 0; i < 3*j; i++) level[i] = 2e36f;
        op->layernorm_forward(&c, out, stats, level, randoms(j), zeros(j), 3, j);
        op->layernorm_backward(&c, out, NULL, NULL, randoms(3*j), level, randoms(j), stats, 0, 3,
                               j);
        for (i = 0; i < 3*j && test_finite(&out[i]); i++) {}
        CHECK(i == 3*j, "gradients of layer norm of %lu large equal numbers are not finite",
              (unsigned long)j);
    }
    for (i = 0; i < 3*n; i++) x[i] = i < n ? 0 : i < 2*n ? 0.1f : -3;
    op->layernorm_forward(&c, y, stats, x, gain, bias, 3, n);
    dx = junk(3*n), dg = zeros(n), db = zeros(n);
    op->layernorm_backward(&c, dx, dg, db, y, x, gain, stats, 0, 3, n);
    for (i = 0; i < 3*n; i++) {
        CHECK(test_finite(&dx[i]) && test_finite(&dg[i%n]) && test_finite(&db[i%n]),
              "gradients of layer norm of a constant: %g %g %g", (double)dx[i],
              (double)dg[i%n], (double)db[i%n]);
    }
    release();
}

/* ---- embedding ------------------------------------------------------------------------------ */

static void test_embedding_shape(size_t rows, size_t n, size_t size)
{
    float *table = randoms(size*n), *dy = randoms(rows*n), *y = junk(rows*n), *z;
    float *d0 = randoms(size*n), *d = copy(d0, size*n), *d1;
    double *Y = reals(rows*n), *D = wide(d0, size*n), *terms = sizes(D, size*n);
    int32_t *tokens = (int32_t *)keep(test_alloc(rows*sizeof(int32_t)));
    sru_context c = context(1);
    size_t i;
    int threads;
    unsigned long R = (unsigned long)rows, M = (unsigned long)n, V = (unsigned long)size;
    for (i = 0; i < rows; i++) tokens[i] = size ? (int32_t)(test_bits()%size) : 0;
    if (rows > 6) {
        tokens[1] = -1;
        tokens[2] = (int32_t)size;
        tokens[3] = INT32_MIN;
        tokens[4] = INT32_MAX;
    }
    naive_embedding_forward(Y, tokens, wide(table, size*n), rows, n, size);
    naive_embedding_backward(D, wide(dy, rows*n), tokens, rows, n, size);
    naive_embedding_backward(terms, sizes(wide(dy, rows*n), rows*n), tokens, rows, n, size);
    CHECK(op->embedding_forward(&c, y, tokens, table, rows, n, size) == SRU_OK, "%s", message);
    CHECK(distance(y, Y, rows*n) == 0, "embedding (%lu,%lu) of %lu is off by %g", R, M, V,
          distance(y, Y, rows*n));
    CHECK(op->embedding_backward(&c, d, dy, tokens, rows, n, size) == SRU_OK, "%s", message);
    CHECK(roundings(d, D, terms, size*n) <= (double)rows + 1, "embedding (%lu,%lu) of %lu: "
          "gradient is off by %g roundings", R, M, V, roundings(d, D, terms, size*n));
    for (threads = 2; threads <= TEST_THREADS; threads++) {
        c.threads = threads;
        d1 = copy(d0, size*n);
        z = junk(rows*n);
        op->embedding_forward(&c, z, tokens, table, rows, n, size);
        op->embedding_backward(&c, d1, dy, tokens, rows, n, size);
        CHECK(same(z, y, rows*n*sizeof *y) && same(d1, d, size*n*sizeof *d),
              "embedding (%lu,%lu) of %lu: other bits with %d threads", R, M, V, threads);
    }
    release();
}

static void test_embedding(void)
{
    static const size_t shapes[][3] = {{0, 4, 5}, {3, 0, 5}, {3, 4, 0}, {1, 1, 1}, {7, 3, 2},
                                       {20, 17, 256}, {1000, 5, 7}, {40, 64, 1}, {333, 33, 31},
                                       {5000, 64, 100}};
    size_t i;
    for (i = 0; i < COUNT(shapes); i++) {
        misaligned = i%2;
        test_embedding_shape(shapes[i][0], shapes[i][1], shapes[i][2]);
    }
    misaligned = 0;
}

/* ---- softmax loss --------------------------------------------------------------------------- */

static void test_softmax_shape(size_t rows, size_t n, double range)
{
    float *y = randoms(rows*n), *dy = junk(rows*n), *z, scale = 0.25f;
    int32_t *targets = (int32_t *)keep(test_alloc(rows*sizeof(int32_t)));
    double *DY = reals(rows*n), loss = -1, want, other;
    float result;
    sru_context c = context(1);
    size_t i;
    int threads;
    unsigned long R = (unsigned long)rows, M = (unsigned long)n;
    for (i = 0; i < rows*n; i++) y[i] *= (float)range;
    for (i = 0; i < rows; i++) targets[i] = i%5 == 4 ? -1 - (int32_t)i : (int32_t)(test_bits()%n);
    want = naive_softmax_loss(DY, wide(y, rows*n), targets, (double)scale, rows, n);
    CHECK(op->softmax_loss(&c, &loss, dy, y, targets, scale, rows, n) == SRU_OK, "%s", message);
    result = (float)loss;
    CHECK(test_finite(&result) && fabs(loss - want) <= 1e-6*(want + (double)rows),
          "softmax (%lu,%lu) range %g: loss is %.9g, not %.9g", R, M, range, loss, want);
    /* each sum of n terms of size up to 1/4 */
    CHECK(distance(dy, DY, rows*n) <= 2e-6, "softmax (%lu,%lu) range %g: dy is off by %g", R, M,
          range, distance(dy, DY, rows*n));
    other = -1;
    op->softmax_loss(&c, &other, NULL, y, targets, scale, rows, n);
    CHECK(same(&other, &loss, sizeof loss), "softmax (%lu,%lu): other bits without dy", R, M);
    for (threads = 1; threads <= TEST_THREADS; threads++) {
        c.threads = threads;
        z = copy(y, rows*n);
        other = -1;
        op->softmax_loss(&c, &other, z, z, targets, scale, rows, n);
        CHECK(same(&other, &loss, sizeof loss) && same(z, dy, rows*n*sizeof *z),
              "softmax (%lu,%lu): other bits in place with %d threads", R, M, threads);
    }
    if (rows) {
        z = junk(n);
        op->softmax_loss(&c, &other, z, y + (rows - 1)*n, targets + rows - 1, scale, 1, n);
        CHECK(same(z, dy + (rows - 1)*n, n*sizeof *z), "softmax (%lu,%lu): other bits alone", R, M);
    }
    release();
}

/* If any value is infinite or not a number, whichever it is, neither loss nor gradients are
   numbers. */
static void test_softmax_nan(void)
{
    enum { MOST = 40 };
    static const uint32_t values[] = {0x7fc00000, 0xffc00000, 0x7f800000};
    float y[2*MOST], dy[2*MOST];
    int32_t targets[2] = {0, 0};
    size_t n, at, i, v;
    for (n = 1; n <= MOST; n++) {
        for (at = 0; at < n; at++) {
            for (v = 0; v < 3; v++) {
                sru_context c = context(1);
                double loss = 0;
                uint64_t bits;
                int numbers = 0;
                for (i = 0; i < 2*n; i++) y[i] = (float)test_random();
                test_set_bits(&y[n + at], values[v]);
                CHECK(op->softmax_loss(&c, &loss, dy, y, targets, 1, 2, n) == SRU_OK, "%s",
                      message);
                memcpy(&bits, &loss, 8);
                for (i = 0; i < n; i++) numbers += !is_nan(&dy[n + i]) + is_nan(&dy[i]);
                CHECK((bits & 0x7fffffffffffffff) > 0x7ff0000000000000 && !numbers,
                      "softmax of %lu, %08x at %lu: loss %g, %d gradients", (unsigned long)n,
                      (unsigned)values[v], (unsigned long)at, loss, numbers);
            }
        }
    }
}

/* However large logits are, their differences count. */
static void test_softmax_large(void)
{
    float y[3] = {1e20f, 1e20f, -3e38f};
    int32_t target = 1;
    sru_context c = context(1);
    double loss = 0;
    CHECK(op->softmax_loss(&c, &loss, NULL, y, &target, 1, 1, 3) == SRU_OK
          && fabs(loss - 0.6931471805599453) < 1e-12, "of two logits 1e20 the loss is %g", loss);
}

static void test_softmax(void)
{
    static const size_t shapes[][2] = {{0, 3}, {1, 1}, {1, 2}, {3, 5}, {4, 16}, {7, 17}, {33, 31},
                                       {10, 256}, {100, 100}, {517, 10}};
    size_t i;
    for (i = 0; i < COUNT(shapes); i++) {
        misaligned = i%2;
        test_softmax_shape(shapes[i][0], shapes[i][1], 1);
        test_softmax_shape(shapes[i][0], shapes[i][1], 20);
        test_softmax_shape(shapes[i][0], shapes[i][1], 1e4);
        test_softmax_shape(shapes[i][0], shapes[i][1], 1e30);
    }
    misaligned = 0;
    test_softmax_large();
    test_softmax_nan();
    {
        /* a sum of very many numbers of one size */
        const size_t n = 1 << 18;
        const int32_t target = 5;
        float *y = zeros(n);
        double loss = -1, want;
        sru_context c = context(1);
        for (i = 1; i < n; i++) y[i] = -2.3f;
        want = naive_softmax_loss(NULL, wide(y, n), &target, 1, 1, n);
        op->softmax_loss(&c, &loss, NULL, y, &target, 1, 1, n);
        CHECK(fabs(loss - want) <= 1e-6*want, "loss of %lu equal numbers is %.9g, not %.9g",
              (unsigned long)n, loss, want);
        release();
    }
    {
        /* exact answers: one logit far above, far below, all equal */
        static const float y[] = {1e4f, -1e4f, 0, -1e4f, -1e4f, 1e4f, -1e4f, -1e4f, -1e4f};
        static const int32_t hit[] = {0, 2, 1}, miss[] = {1, 0, 0}, none[] = {-1, -1, -1};
        float dy[9];
        double loss = -1;
        sru_context c = context(1);
        int i9;
        op->softmax_loss(&c, &loss, dy, y, hit, 1, 3, 3);
        CHECK(fabs(loss - log(3.0)) < 1e-6 && fabs((double)dy[0]) < 1.3e-38
              && fabs((double)dy[1]) < 1.3e-38 && fabs((double)dy[5]) < 1.3e-38,
              "loss of sure hits is %g", loss);
        op->softmax_loss(&c, &loss, dy, y, miss, 1, 3, 3);
        CHECK(fabs(loss - 40000 - log(3.0)) < 0.01 && dy[0] == 1 && dy[1] == -1,
              "loss of sure misses is %g", loss);
        op->softmax_loss(&c, &loss, dy, y, none, 1, 3, 3);
        for (i9 = 0; i9 < 9; i9++) CHECK(dy[i9] == 0, "dy is %g without targets", (double)dy[i9]);
        CHECK(loss == 0, "loss is %g without targets", loss);
    }
}

/* ---- norm, AdamW ---------------------------------------------------------------------------- */

static void test_norm(void)
{
    static const size_t ns[] = {0, 1, 2, 15, 16, 17, 100, 1000, 4097, 100003};
    static const double scales[] = {1, 1e-30, 1e30, 1e-14, 1e17};
    size_t i, j;
    int threads;
    for (i = 0; i < COUNT(ns); i++) {
        for (j = 0; j < COUNT(scales); j++) {
            float *g = (misaligned = i%2, zeros(ns[i]));
            double norm = -1, want, other;
            float result;
            sru_context c = context(1);
            test_fill(g, ns[i], scales[j]);
            want = naive_norm(wide(g, ns[i]), ns[i]);
            CHECK(op->norm(&c, &norm, g, ns[i]) == SRU_OK, "%s", message);
            result = (float)norm;
            CHECK(test_finite(&result) && fabs(norm - want) <= 1e-6*want,
                  "norm of %lu numbers is %.9g, not %.9g", (unsigned long)ns[i], norm, want);
            for (threads = 2; threads <= TEST_THREADS; threads++) {
                c.threads = threads;
                other = -1;
                op->norm(&c, &other, g, ns[i]);
                CHECK(same(&other, &norm, sizeof norm), "norm: other bits with %d threads",
                      threads);
            }
            if (ns[i]) {
                test_make_nan(&g[ns[i]/2]);
                op->norm(&c, &norm, g, ns[i]);
                result = (float)norm;
                CHECK(is_nan(&result), "norm of %lu numbers, one of them NaN, is %g",
                      (unsigned long)ns[i], norm);
                test_make_minus_infinity(&g[ns[i]/2]);
                op->norm(&c, &norm, g, ns[i]);
                result = (float)norm;
                CHECK(!test_finite(&result), "norm of %lu numbers, one of them -inf, is %g",
                      (unsigned long)ns[i], norm);
            }
            release();
        }
    }
    misaligned = 0;
}

static void test_adamw_size(size_t n)
{
    struct { float *p, *m, *v; } w[3];          /* trained with 1, 2 and 3 threads */
    float *p = w[0].p = randoms(n), *m = w[0].m = zeros(n), *v = w[0].v = zeros(n);
    double *P = wide(p, n), *M = reals(n), *V = reals(n);
    /* variables: in 32-bit code, constants may have more bits than a float */
    const float lr = 0.01f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, decay = 0.1f;
    uint64_t t;
    size_t i;
    int k;
    for (k = 1; k < 3; k++) w[k].p = copy(p, n), w[k].m = zeros(n), w[k].v = zeros(n);
    for (t = 1; t <= 10; t++) {
        float *g = randoms(n), scale = t%2 ? 1 : 0.3f;
        double *G;
        if (n > 3) g[0] = 0, g[1] = 1e-12f, g[2] = 1e8f;
        G = wide(g, n);
        naive_adamw(P, M, V, G, (double)scale, (double)lr, (double)beta1, (double)beta2,
                    (double)eps, (double)decay, t, n);
        for (k = 0; k < 3; k++) {
            float *g1 = copy(g, n);
            sru_context c = context(1 + k);
            CHECK(op->adamw(&c, w[k].p, w[k].m, w[k].v, g1, scale, lr, beta1, beta2, eps, decay, t,
                            n) == SRU_OK, "%s", message);
            for (i = 0; i < n && g1[i] == 0; i++) continue;
            CHECK(i == n, "g[%lu] is %g after an update", (unsigned long)i,
                  i < n ? (double)g1[i] : 0);
        }
    }
    for (k = 1; k < 3; k++) {
        CHECK(same(w[k].p, p, n*sizeof *p) && same(w[k].m, m, n*sizeof *p)
              && same(w[k].v, v, n*sizeof *p), "AdamW: other bits with %d threads", 1 + k);
    }
    /* updates are about 0.01 each: the ten together must be right to 1e-5 of that */
    for (i = 0; i < n && test_finite(&p[i]) && fabs((double)p[i] - P[i]) <= 1e-6; i++) continue;
    CHECK(i == n, "AdamW: p[%lu] of %lu is %.9g, not %.9g", (unsigned long)i, (unsigned long)n,
          i < n ? (double)p[i] : 0, i < n ? P[i] : 0);
    CHECK(test_error_double(m, M, n) <= 1e-5 && test_error_double(v, V, n) <= 1e-5,
          "AdamW: m, v of %lu are off by %g, %g", (unsigned long)n, test_error_double(m, M, n),
          test_error_double(v, V, n));
    release();
}

static void test_adamw(void)
{
    static const size_t ns[] = {0, 1, 3, 15, 16, 17, 30, 33, 100, 1000, 40001};
    size_t i;
    for (i = 0; i < COUNT(ns); i++) {
        misaligned = i%2;
        test_adamw_size(ns[i]);
    }
    misaligned = 0;
    /* squares as small as numbers that count can be */
    {
        float p = 0, m = 0, v = 1.5e-38f, g = 1.2247449e-19f;
        sru_context c = context(1);
        CHECK(op->adamw(&c, &p, &m, &v, &g, 1, 1, 0, 0.99999994f, 0, 0, 1000000000, 1) == SRU_OK,
              "%s", message);
        CHECK(p < -0.999f && p > -1.001f, "a step of AdamW, 1.2e-19 beside itself, is %g",
              (double)p);
    }
    /* late in training nothing overflows: beta^t is 0 */
    {
        float p = 1, m = 0.5f, v = 0.25f, g = 0.5f;
        double P = 1, M = 0.5, V = 0.25, G = 0.5;
        sru_context c = context(1);
        uint64_t t = UINT64_C(5000000000);
        op->adamw(&c, &p, &m, &v, &g, 1, 0.01f, 0.9f, 0.999f, 1e-8f, 0, t, 1);
        naive_adamw(&P, &M, &V, &G, 1, (double)0.01f, (double)0.9f, (double)0.999f, (double)1e-8f,
                    0, t, 1);
        CHECK(fabs((double)p - P) < 1e-6, "AdamW at step 5e9: p is %.9g, not %.9g", (double)p, P);
    }
    /* a gradient whose square is infinite, and updates after it */
    {
        float p = 1, m = 0, v = 0, g = 1e20f;
        sru_context c = context(1);
        uint64_t t;
        for (t = 1; t <= 3; t++, g = 1) {
            op->adamw(&c, &p, &m, &v, &g, 1, 0.01f, 0.9f, 0.999f, 1e-8f, 0, t, 1);
            CHECK(p < 1 && p > 0.95f, "AdamW: a gradient of 1e20 makes %g of 1 by update %d",
                  (double)p, (int)t);
        }
        test_make_nan(&g);
        op->adamw(&c, &p, &m, &v, &g, 1, 0.01f, 0.9f, 0.999f, 1e-8f, 0, t, 1);
        CHECK(!test_finite(&p) && !test_finite(&v), "AdamW: a gradient that is NaN makes %g, v %g",
              (double)p, (double)v);
    }
}

/* ---- dropout -------------------------------------------------------------------------------- */

static void draw(float *y, float p, uint64_t seed, uint64_t step, uint32_t id, size_t n,
                 int threads)
{
    sru_context c = context(threads);
    c.seed = seed;
    c.step = step;
    memset(y, 0xff, n*sizeof *y);
    CHECK(op->dropout(&c, y, NULL, NULL, p, id, 0, 1, n) == SRU_OK, "%s", message);
}

/* The generator: splitmix64 of a counter. Masks are the same on all processors. */
static uint64_t mixed(uint64_t z)
{
    z = (z ^ (z >> 30))*UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27))*UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static double number(uint64_t seed, uint64_t step, uint32_t id, size_t i)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    const uint64_t key = mixed(mixed(mixed(seed + golden) + step) + id);
    return (double)(mixed(key + (i + 1)*golden) >> 40)/16777216;
}

static void test_dropout(void)
{
    static const float ps[] = {0.1f, 0.25f, 0.5f, 0.75f, 0.9f};
    const size_t n = 100003;
    const double count = 100003;
    float *y = junk(n), *z = junk(n);
    size_t i, k;
    for (k = 0; k < COUNT(ps); k++) {
        double p = (double)ps[k], kept = 0, pairs = 0, sigma = sqrt(p*(1 - p)/count);
        long other = 0, wrong = 0;
        draw(y, ps[k], 42, 7, 3, n, 1);
        for (i = 0; i < n; i++) {
            int on = fabs((double)y[i]*(1 - p) - 1) < 1e-6;
            if (!on && y[i] != 0) other++;
            wrong += on != (number(42, 7, 3, i) >= p);
            kept += on;
            if (i && on && y[i - 1] != 0) pairs++;
        }
        CHECK(!other, "dropout %g: %ld numbers are neither 0 nor 1/(1 - p)", p, other);
        CHECK(!wrong, "dropout %g: %ld are not as the generator's numbers say", p, wrong);
        /* 5 standard deviations are allowed: one in a million is beyond */
        CHECK(fabs(kept/count - (1 - p)) <= 5*sigma, "dropout %g keeps %g", p, kept/count);
        CHECK(fabs(pairs/count - (1 - p)*(1 - p)) <= 10*sigma, "dropout %g keeps %g of the pairs",
              p, pairs/count);
        draw(z, ps[k], 42, 7, 3, n, 2);
        CHECK(same(y, z, n*sizeof *y), "dropout %g: other bits with 2 threads", p);
        draw(z, ps[k], 42, 7, 3, n, 3);
        CHECK(same(y, z, n*sizeof *y), "dropout %g: other bits with 3 threads", p);
        draw(z, ps[k], 42, 7, 3, 777, 1);
        CHECK(same(y, z, 777*sizeof *y), "dropout %g: a shorter mask starts differently", p);
    }
    /* every part of the key matters: two masks of p = 1/2 are to agree in half their places */
    draw(y, 0.5f, 42, 7, 3, n, 1);
    for (k = 0; k < 6; k++) {
        double agree = 0;
        static const char *names[] = {"seed", "step", "id", "high seed", "high step", "high id"};
        draw(z, 0.5f, k == 0 ? 43 : k == 3 ? 42 + (UINT64_C(1) << 40) : 42,
             k == 1 ? 8 : k == 4 ? 7 + (UINT64_C(1) << 40) : 7,
             k == 2 ? 4 : k == 5 ? 3 + (1u << 30) : 3, n, 1);
        for (i = 0; i < n; i++) agree += y[i] == z[i];
        CHECK(fabs(agree/count - 0.5) <= 5*0.5/sqrt(count), "dropout: with another %s %g agree",
              names[k], agree/count);
    }
    release();

    /* a mask for several steps, drawn or given; in place; as its own backward */
    for (k = 0; k < 2; k++) {
        enum { T = 5, m = 77 };
        float *x, *mask, *a, *b, *c;
        sru_context ctx = context(1);
        size_t t;
        int right = 1;
        misaligned = k;
        x = randoms(T*m), mask = junk(m), a = junk(T*m), b = copy(x, T*m), c = junk(T*m);
        ctx.seed = 5;
        ctx.step = 6;
        op->dropout(&ctx, mask, NULL, NULL, 0.3f, 9, 0, 1, m);
        op->dropout(&ctx, a, x, NULL, 0.3f, 9, 0, T, m);
        ctx.threads = 3;
        op->dropout(&ctx, b, b, NULL, 0.3f, 9, 0, T, m);
        op->dropout(&ctx, c, x, mask, 0, 0, 0, T, m);
        CHECK(same(a, b, T*m*sizeof *a), "dropout: other bits in place");
        CHECK(same(a, c, T*m*sizeof *a), "dropout: other bits with a mask given");
        for (t = 0; t < T; t++) {
            for (i = 0; i < m; i++) {
                float want = x[t*m + i]*mask[i];
                right = right && fabs((double)a[t*m + i] - (double)want) <= 1e-6;
            }
        }
        CHECK(right, "dropout: y is not x*mask");
        op->dropout(&ctx, c, NULL, mask, 0, 0, 0, T, m);
        for (t = 0; t < T; t++) {
            CHECK(same(c + t*m, mask, m*sizeof *c), "dropout: step %d has another mask", (int)t);
        }
        op->dropout(&ctx, a, x, NULL, 0, 9, 0, T, m);
        CHECK(same(a, x, T*m*sizeof *a), "dropout: p = 0 changes x");
        op->dropout(&ctx, a, x, NULL, 0, 9, 1, T, m);
        for (i = 0, right = 1; i < T*m; i++) right = right && a[i] == 2*x[i];
        CHECK(right, "dropout: p = 0 and beta 1 are not y += x");
        memcpy(b, c, T*m*sizeof *b);
        op->dropout(&ctx, b, x, mask, 0, 0, 1, T, m);
        for (i = 0, right = 1; i < T*m; i++) {
            double want = (double)c[i] + (double)x[i]*(double)mask[i%m];
            right = right && fabs((double)b[i] - want) <= 4*rounding*(1 + fabs(want));
        }
        CHECK(right, "dropout: with beta 1, y is not y + x*mask");
        op->dropout(&ctx, a, x, NULL, 1, 9, 0, T, m);
        for (i = 0, right = 1; i < T*m; i++) right = right && a[i] == 0;
        CHECK(right, "dropout: p = 1 keeps something");
        CHECK(op->dropout(&ctx, a, x, NULL, 0.5f, 9, 0, 0, m) == SRU_OK
              && op->dropout(&ctx, a, x, NULL, 0.5f, 9, 0, T, 0) == SRU_OK, "%s", message);
        release();
    }
    misaligned = 0;
}

/* ---- Errors, and exact scratch memory ------------------------------------------------------- */

static void expect(sru_status got, sru_status want, const char *what)
{
    test_status(got, want, message, sizeof message, what);
}

static void test_errors(void)
{
    const size_t huge = (size_t)-1/2 + 3;       /* twice that overflows */
    float *f = randoms(64);
    size_t need = 0;
    int32_t tokens[4] = {0, 1, 0, 1};
    double d;
    sru_context c = context(1);
    sru_scan s, q;
    memset(message, 0, sizeof message);

    expect(op->linear_forward(&c, NULL, f, f, SRU_PLAIN, f, 2, 2, 2), SRU_EINVAL, "y NULL");
    expect(op->linear_forward(&c, f, NULL, f, SRU_PLAIN, f, 2, 2, 2), SRU_EINVAL, "x NULL");
    expect(op->linear_forward(&c, f, f, NULL, SRU_PLAIN, f, 2, 2, 2), SRU_EINVAL, "w NULL");
    expect(op->linear_forward(&c, f, f, f, SRU_PLAIN, f, huge, 2, 2), SRU_EINVAL, "linear: rows");
    expect(op->linear_forward(&c, f, f, f, SRU_PLAIN, f, 2, huge, 2), SRU_EINVAL, "linear: n");
    expect(op->linear_forward(&c, f, f, f, SRU_PLAIN, f, 2, 2, huge), SRU_EINVAL, "linear: k");
    expect(op->linear_backward(&c, f, f, f, NULL, f, f, 0, 2, 2, 2), SRU_EINVAL, "dy NULL");
    expect(op->linear_backward(&c, NULL, f, f, f, NULL, f, 0, 2, 2, 2), SRU_EINVAL,
           "linear backward: x NULL");
    expect(op->linear_backward(&c, f, NULL, f, f, f, NULL, 0, 2, 2, 2), SRU_EINVAL,
           "linear backward: w NULL");
    expect(op->linear_backward(&c, f, f, f, f, f, f, 0.5f, 2, 2, 2), SRU_EINVAL,
           "linear backward: beta 0.5");
    expect(op->linear_backward(&c, f, f, f, f, f, f, 0, huge, 2, 2), SRU_EINVAL,
           "linear backward: rows");
    expect(op->linear_backward(&c, f, f, f, f, f, f, 0, 2, huge, 2), SRU_EINVAL,
           "linear backward: n");

    memset(&s, 0, sizeof s);
    s.T = s.B = s.N = 2;
    s.A = 2;
    s.K = 3;
    s.u = f;
    s.h = f + 32;
    s.c = f + 40;
    s.dh = f;
    s.du = f + 32;
    expect(op->scan_forward(&c, NULL), SRU_EINVAL, "scan NULL");
    q = s, q.h = NULL;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: h NULL");
    q = s, q.u = NULL;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: u and w NULL");
    q = s, q.w = f, q.a = NULL;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: a NULL");
    q = s, q.K = 5;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: K 5");
    q = s, q.K = 1;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: K 1");
    q = s, q.K = 2, q.use_tanh = 1;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: K 2 and use_tanh");
#ifndef __cplusplus     /* there an enum cannot hold what is not a value of it */
    expect(op->linear_forward(&c, f, f, f, (sru_type)9, f, 2, 2, 2), SRU_EINVAL, "linear: type");
    q = s, q.w = f, q.a = f, q.type = (sru_type)9;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: type");
#endif
    q = s, q.N = 3, q.bidirectional = 1;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: bidirectional and N odd");
    q = s, q.T = huge;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: T");
    q = s, q.B = huge;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: B");
    q = s, q.N = (size_t)-1/3;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: N");
    q = s, q.w = f, q.a = f, q.A = (size_t)-1/4;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: I");
    q = s, q.T = 0, q.B = (size_t)-1/8;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: B of no steps");
    q = s, q.ldc = (size_t)1 << (sizeof(size_t)*8 - 2);
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: ldc");
    expect(op->scan_backward(&c, &q), SRU_EINVAL, "scan backward: ldc");
    q = s, q.storage = SRU_BF16;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: storage");
    q = s, q.ldc = 1;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: ldc below N");
    q = s, q.w = f, q.a = q.h, q.bidirectional = 1;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: in place in two directions");
    c.measure = &need;
    CHECK(op->scan_forward(&c, &q) == SRU_OK, "scan: measured by its addresses: %s", message);
    c.measure = NULL;
    q = s, q.w = f, q.a = q.h, q.A = 1;
    expect(op->scan_forward(&c, &q), SRU_EINVAL, "scan: in place where A is not N");
    expect(op->scan_backward(&c, NULL), SRU_EINVAL, "scan backward NULL");
    q = s, q.u = NULL;
    expect(op->scan_backward(&c, &q), SRU_EINVAL, "scan backward: u NULL");
    q = s, q.c = NULL;
    expect(op->scan_backward(&c, &q), SRU_EINVAL, "scan backward: c NULL");
    q = s, q.dh = NULL;
    expect(op->scan_backward(&c, &q), SRU_EINVAL, "scan backward: dh NULL");
    q = s, q.du = NULL;
    expect(op->scan_backward(&c, &q), SRU_EINVAL, "scan backward: du NULL");
    q = s, q.T = huge;
    expect(op->scan_backward(&c, &q), SRU_EINVAL, "scan backward: T");
    q = s, q.w = q.a = f, q.type = SRU_F32;
    expect(op->scan_backward(&c, &q), SRU_EINVAL, "scan backward: packed w");

    expect(op->layernorm_forward(&c, NULL, f, f, f, f, 2, 2), SRU_EINVAL, "layer norm: y NULL");
    expect(op->layernorm_forward(&c, f, f, NULL, f, f, 2, 2), SRU_EINVAL, "layer norm: x NULL");
    expect(op->layernorm_forward(&c, f, f, f, NULL, f, 2, 2), SRU_EINVAL, "layer norm: gain NULL");
    expect(op->layernorm_forward(&c, f, f, f, f, NULL, 2, 2), SRU_EINVAL, "layer norm: bias NULL");
    expect(op->layernorm_forward(&c, f, f, f, f, f, huge, 2), SRU_EINVAL, "layer norm: rows");
    expect(op->layernorm_backward(&c, f, f, f, f, f, f, NULL, 0, 2, 2), SRU_EINVAL,
           "layer norm: stats NULL");
    expect(op->layernorm_backward(&c, f, f, f, NULL, f, f, f, 0, 2, 2), SRU_EINVAL,
           "layer norm: dy NULL");
    expect(op->layernorm_backward(&c, f, f, f, f, f, f, f, 0.5f, 2, 2), SRU_EINVAL,
           "layer norm backward: beta");
    expect(op->layernorm_backward(&c, f, f, f, f, f, f, f, 0, huge, 2), SRU_EINVAL,
           "layer norm backward: rows");

    expect(op->embedding_forward(&c, NULL, tokens, f, 2, 2, 2), SRU_EINVAL, "embedding: y NULL");
    expect(op->embedding_forward(&c, f, NULL, f, 2, 2, 2), SRU_EINVAL, "embedding: tokens NULL");
    expect(op->embedding_forward(&c, f, tokens, NULL, 2, 2, 2), SRU_EINVAL,
           "embedding: table NULL");
    expect(op->embedding_forward(&c, f, tokens, f, huge, 2, 2), SRU_EINVAL, "embedding: rows");
    expect(op->embedding_forward(&c, f, tokens, f, 2, huge, 2), SRU_EINVAL, "embedding: n");
    expect(op->embedding_backward(&c, NULL, f, tokens, 2, 2, 2), SRU_EINVAL,
           "embedding: dtable NULL");
    expect(op->embedding_backward(&c, f, NULL, tokens, 2, 2, 2), SRU_EINVAL, "embedding: dy NULL");

    expect(op->dropout(&c, NULL, f, NULL, 0.5f, 0, 0, 2, 2), SRU_EINVAL, "dropout: y NULL");
    expect(op->dropout(&c, f, f, NULL, 1.5f, 0, 0, 2, 2), SRU_EINVAL, "dropout: p > 1");
    expect(op->dropout(&c, f, f, NULL, -0.5f, 0, 0, 2, 2), SRU_EINVAL, "dropout: p < 0");
    expect(op->dropout(&c, f, f, NULL, 0.5f, 0, 0.5f, 2, 2), SRU_EINVAL, "dropout: beta");
    expect(op->dropout(&c, f, f, NULL, 0.5f, 0, 0, huge, 2), SRU_EINVAL, "dropout: T");

    expect(op->softmax_loss(&c, NULL, f, f, tokens, 1, 2, 2), SRU_EINVAL, "softmax: loss NULL");
    expect(op->softmax_loss(&c, &d, f, NULL, tokens, 1, 2, 2), SRU_EINVAL, "softmax: y NULL");
    expect(op->softmax_loss(&c, &d, f, f, NULL, 1, 2, 2), SRU_EINVAL, "softmax: targets NULL");
    expect(op->softmax_loss(&c, &d, f, f, tokens, 1, huge, 2), SRU_EINVAL, "softmax: rows");
    expect(op->softmax_loss(&c, &d, f, f, tokens, 1, 2, 1), SRU_EINVAL, "softmax: a target");

    expect(op->norm(&c, NULL, f, 2), SRU_EINVAL, "norm: norm NULL");
    expect(op->norm(&c, &d, NULL, 2), SRU_EINVAL, "norm: g NULL");
    expect(op->adamw(&c, NULL, f, f, f, 1, 1, 0, 0, 0, 0, 1, 2), SRU_EINVAL, "adamw: p NULL");
    expect(op->adamw(&c, f, NULL, f, f, 1, 1, 0, 0, 0, 0, 1, 2), SRU_EINVAL, "adamw: m NULL");
    expect(op->adamw(&c, f, f, NULL, f, 1, 1, 0, 0, 0, 0, 1, 2), SRU_EINVAL, "adamw: v NULL");
    expect(op->adamw(&c, f, f, f, NULL, 1, 1, 0, 0, 0, 0, 1, 2), SRU_EINVAL, "adamw: g NULL");

    expect(op->adamw(&c, f, f, f, f, 1, 1, 0, 0, 0, 0, 0, 2), SRU_EINVAL, "adamw: t 0");
    expect(op->adamw(&c, f, f, f, f, 1, 1, 1, 0, 0, 0, 1, 2), SRU_EINVAL, "adamw: beta1");
    expect(op->adamw(&c, f, f, f, f, 1, 1, 0, 1, 0, 0, 1, 2), SRU_EINVAL, "adamw: beta2");

    expect(op->norm(&c, &d, f, huge), SRU_EINVAL, "norm: n");
    expect(op->adamw(&c, f, f, f, f, 1, 1, 0, 0, 0, 0, 1, huge), SRU_EINVAL, "adamw: n");

    /* no context, and no room for a sentence */
    CHECK(op->norm(NULL, &d, f, 64) == SRU_OK, "norm without a context");
    CHECK(op->norm(NULL, NULL, f, 64) == SRU_EINVAL, "norm without a context or a norm");
    c.error = NULL;
    CHECK(op->norm(&c, NULL, f, 64) == SRU_EINVAL, "norm without room for a sentence");
    release();
}

/* The arrays of the calls whose scratch memory is measured. */
static struct {
    sru_scan s;
    void    *w[4];
    float   *out;
    size_t   count;
} job;

static sru_status call_linear(const sru_context *c)
{
    return op->linear_forward(c, job.out, job.s.a, job.w[0], SRU_PLAIN, NULL, 60, 96, 40);
}

static sru_status call_linear_q8(const sru_context *c)
{
    return op->linear_forward(c, job.out, job.s.a, job.w[3], SRU_Q8, NULL, 60, 32, 40);
}

static sru_status call_linear_backward(const sru_context *c)
{
    return op->linear_backward(c, job.out, job.out + 2400, NULL, job.s.dh, job.s.a,
                               (const float *)job.w[0], 0, 60, 32, 40);
}

static sru_status call_scan_type(const sru_context *c, sru_type type, int tape)
{
    sru_scan s = job.s;
    s.type = type;
    s.w = job.w[type];
    s.u = tape ? job.out + 2000 : NULL;
    s.h = job.out;
    return op->scan_forward(c, &s);
}

static sru_status call_scan(const sru_context *c)
{
    return call_scan_type(c, SRU_PLAIN, 0);
}

static sru_status call_scan_tape(const sru_context *c)
{
    return call_scan_type(c, SRU_PLAIN, 1);
}

static sru_status call_scan_q8(const sru_context *c)
{
    return call_scan_type(c, SRU_Q8, 0);
}

static sru_status call_scan_backward(const sru_context *c)
{
    sru_scan s = job.s;
    s.u = (float *)s.x;
    s.x = NULL;
    s.w = job.w[0];
    s.du = job.out;
    s.da = job.out + 6000;
    s.dw = job.out + 9000;
    s.dv = job.out + 13000;
    s.dbias = job.out + 13100;
    return op->scan_backward(c, &s);
}

static sru_status call_layernorm(const sru_context *c)
{
    return op->layernorm_forward(c, job.out, job.out + 2400, job.s.a, job.s.bias, job.s.bias, 60,
                                 40);
}

static sru_status call_layernorm_backward(const sru_context *c)
{
    return op->layernorm_backward(c, job.out, job.out + 2400, job.out + 2500, job.s.a, job.s.dh,
                                  job.s.bias, job.s.dh, 0, 60, 32);
}

static sru_status call_embedding_backward(const sru_context *c)
{
    static const int32_t tokens[] = {0, 3, 1, 1, 2, 0};
    return op->embedding_backward(c, job.out, job.s.a, tokens, 6, 40, 4);
}

static sru_status call_softmax(const sru_context *c)
{
    static const int32_t targets[] = {0, 3, 1, 1, 2, 0};
    double loss = -1;
    sru_status status = op->softmax_loss(c, &loss, job.out, job.s.a, targets, 1, 6, 40);
    job.out[300] = (float)loss + 1;
    return status;
}

static sru_status call_norm(const sru_context *c)
{
    double norm = -1;
    sru_status status = op->norm(c, &norm, job.s.a, 2400);
    job.out[0] = (float)norm + 1;
    return status;
}

static sru_status call_dropout(const sru_context *c)
{
    return op->dropout(c, job.out, NULL, NULL, 0.5f, 1, 0, 3, 1000);
}

static sru_status call_pack(const sru_context *c)
{
    return op->pack(c, job.out, SRU_F32, job.s.a, 32, 40) ? SRU_OK : SRU_EINVAL;
}

static void check_work(const char *name, sru_status (*call)(const sru_context *))
{
    size_t need, bytes = job.count*sizeof(float), i, written = 0;
    float *want = zeros(job.count);
    int threads;
    for (threads = 1; threads <= 3; threads += 2) {
        sru_context c = context(threads);
        char *work;
        size_t shift;
        need = 0;
        memset(job.out, 0, bytes);
        CHECK(call(&c) == SRU_OK, "%s: %s", name, message);
        memcpy(want, job.out, bytes);
        memset(job.out, 0, bytes);
        c.measure = &need;
        CHECK(call(&c) == SRU_OK, "%s: measuring: %s", name, message);
        for (i = 0; i < job.count; i++) written += job.out[i] != 0;
        CHECK(!written, "%s: measuring has written %lu numbers", name, (unsigned long)written);
        c.measure = NULL;
        for (shift = 0; shift <= 4; shift += 4) {           /* wherever the memory begins */
            work = (char *)test_alloc(need + shift);
            memset(job.out, 0, bytes);
            c.work = work + shift;
            c.work_size = need;
            CHECK(call(&c) == SRU_OK, "%s: %lu bytes of work, as measured: %s", name,
                  (unsigned long)need, message);
            CHECK(alike(job.out, want, job.count), "%s: other bits with work given", name);
            free(work);
        }
        if (need) {
            work = (char *)test_alloc(need);
            c.work = work;
            c.work_size = need - 1;
            memset(message, 0, sizeof message);
            expect(call(&c), SRU_ENOMEM, name);
            c.work_size = 0;
            expect(call(&c), SRU_ENOMEM, name);
            free(work);
        }
    }
}

static void test_work(void)
{
    float *w = randoms(3*32*40);
    memset(&job, 0, sizeof job);
    job.count = 14000;
    job.out = zeros(job.count);
    job.s.T = 20;
    job.s.B = 3;
    job.s.N = 32;
    job.s.A = 40;
    job.s.K = 3;
    job.s.a = randoms(60*40);
    job.s.x = randoms(60*96);
    job.s.v = randoms(64);
    job.s.bias = randoms(64);
    job.s.dh = randoms(60*32);
    job.s.c = randoms(60*32);
    job.w[SRU_PLAIN] = w;
    job.w[SRU_F32] = packed_layer(SRU_F32, w, NULL, &job.s);
    job.w[SRU_Q8] = packed_layer(SRU_Q8, w, NULL, &job.s);
    check_work("pack", call_pack);
    check_work("linear", call_linear);
    if (job.w[SRU_Q8]) check_work("linear on Q8", call_linear_q8);
    check_work("linear backward", call_linear_backward);
    check_work("scan", call_scan);
    check_work("scan with tape", call_scan_tape);
    if (job.w[SRU_Q8]) check_work("scan on Q8", call_scan_q8);
    check_work("scan backward", call_scan_backward);
    check_work("layer norm", call_layernorm);
    check_work("layer norm backward", call_layernorm_backward);
    check_work("embedding backward", call_embedding_backward);
    check_work("softmax loss", call_softmax);
    check_work("norm", call_norm);
    check_work("dropout", call_dropout);
    release();
}

/* ---- alloc, release, copy ------------------------------------------------------------------- */

static void test_memory(void)
{
    sru_context c = context(1);
    unsigned char *p = (unsigned char *)op->alloc(&c, 1000);
    float a[5] = {1, 2, 3, 4, 5}, b[5] = {0, 0, 0, 0, 0};
    size_t i;
    if (!CHECK(p != NULL, "alloc gave nothing")) return;
    CHECK((uintptr_t)p%64 == 0, "alloc: the address is %lu past a multiple of 64",
          (unsigned long)((uintptr_t)p%64));
    for (i = 0; i < 1000 && p[i] == 0; i++) continue;
    CHECK(i == 1000, "alloc: byte %d is not 0", (int)i);
    memset(p, 1, 1000);
    op->release(&c, p);
    op->release(&c, NULL);
    CHECK(op->alloc(&c, (size_t)-1) == NULL, "alloc gave all memory there is");
    CHECK(op->alloc(&c, (size_t)-64) == NULL, "alloc gave all memory there is");
    CHECK(op->copy(&c, b, a, sizeof a) == SRU_OK && same(a, b, sizeof a), "copy");
    CHECK(op->copy(&c, b, NULL, 2*sizeof(float)) == SRU_OK && b[0] == 0 && b[1] == 0 && b[2] == 3,
          "copy from NULL");
    CHECK(op->rows > 0, "rows is 0");
}

/* ---- numbers below 1.2e-38 ------------------------------------------------------------------- */

/* They count as 0 inside a call, where that is possible, and the caller's arithmetic stays
   as it was: with -ffast-math, some compilers count them as 0 everywhere. */
static float at_start;

static float half_of_tiny(void)
{
    volatile float tiny = 1e-40f;
    return tiny*0.5f;
}

static void test_denormals(void)
{
    int threads;
    for (threads = 1; threads <= 2; threads++) {
        sru_context c = context(threads);
        const size_t rows = 64, k = 64;
        float *x = zeros(rows*k), *w = zeros(k*k), *y = junk(rows*k), half;
        size_t i;
        for (i = 0; i < rows*k; i++) x[i] = 1e-40f;
        for (i = 0; i < k*k; i++) w[i] = 1e30f;
        CHECK(op->linear_forward(&c, y, x, w, SRU_PLAIN, NULL, rows, k, k) == SRU_OK, "%s",
              message);
        half = half_of_tiny();
        CHECK(same(&half, &at_start, sizeof half), "a call changes the caller's arithmetic");
#if (defined(__SSE_MATH__) || defined(__aarch64__)) && !defined(SRU_USE_CBLAS)
        for (i = 0; i < rows*k && y[i] == 0; i++) continue;
        CHECK(i == rows*k, "1e-40 counts: y[%lu] is %g", (unsigned long)i,
              i < rows*k ? (double)y[i] : 0);
#endif
        release();
    }
    {   /* a state that fades out is 0 in the end, everywhere */
        enum { T = 2000, N = 5 };
        float *u = zeros(T*3*N), *one = zeros(N), *last = junk(N);
        sru_context c = context(1);
        sru_scan s;
        size_t i;
        memset(&s, 0, sizeof s);
        s.T = T, s.B = 1, s.N = N, s.K = 3;
        s.u = u, s.c0 = one, s.cT = last, s.h = junk(T*N);
        for (i = 0; i < T*N; i++) u[i/N*3*N + N + i%N] = 2;
        for (i = 0; i < N; i++) one[i] = 1;
        CHECK(op->scan_forward(&c, &s) == SRU_OK, "%s", message);
        test_constant("a state of which 0.88 stayed 2000 times", last, N, 0);
        release();
    }
}

/* ---- a caller who rounds in another way ------------------------------------------------------ */

/* Products and scans are rounded to the nearest all the same, whatever thread has a part, and the
   caller goes on rounding in its own way. */
static void test_rounding_mode(void)
{
#if defined(FE_UPWARD) && (defined(__SSE_MATH__) || defined(__aarch64__)) && !defined(SRU_USE_CBLAS)
    enum { ROWS = 64, N = 60 };
    static const int ways[] = { FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST };
    float *x = zeros(ROWS*N), *w = zeros(3*N*N), *first = junk(4*ROWS*N), *y = junk(4*ROWS*N);
    size_t i;
    test_fill(x, ROWS*N, 1);
    test_fill(w, 3*N*N, 1);
    for (i = 0; i < COUNT(ways); i++) {
        sru_context c = context(i ? 2 : 1);
        sru_scan s;
        sru_status status;
        int after;
        memset(&s, 0, sizeof s);
        s.T = ROWS, s.B = 1, s.N = s.A = N, s.K = 3;
        s.a = s.x = x, s.w = w, s.u = y, s.h = y + 3*ROWS*N;
        fesetround(ways[i]);
        status = op->scan_forward(&c, &s);
        after = fegetround();
        fesetround(FE_TONEAREST);
        CHECK(status == SRU_OK, "%s", message);
        CHECK(after == ways[i], "a call changes how the caller rounds");
        if (!i) memcpy(first, y, 4*ROWS*N*sizeof *y);
        CHECK(same(first, y, 4*ROWS*N*sizeof *y), "way %d of rounding: other bits", (int)i);
    }
    release();
#endif
}

/* ---- a caller who wants to be stopped at overflows ------------------------------------------- */

/* Results are infinite or NaN, as for other callers; after a call, the caller is still stopped. */
static void test_exceptions(void)
{
#if defined(__GNUC__) && defined(__SSE_MATH__) && !defined(SRU_USE_CBLAS)
    const unsigned before = __builtin_ia32_stmxcsr();
    const unsigned wanted = before & ~0xe80u;       /* invalid, by 0, overflow, underflow */
    int threads;
    for (threads = 1; threads <= 2; threads++) {
        sru_context c = context(threads);
        const size_t rows = 64, k = 64;
        float *x = zeros(rows*k), *w = zeros(k*k), *y = junk(rows*k);
        sru_status status;
        unsigned after;
        size_t i;
        for (i = 0; i < rows*k; i++) x[i] = 1e30f;
        for (i = 0; i < k*k; i++) w[i] = i >= k && i%2 ? -1e30f : 1e30f;
        __builtin_ia32_ldmxcsr(wanted);
        status = op->linear_forward(&c, y, x, w, SRU_PLAIN, NULL, rows, k, k);
        after = __builtin_ia32_stmxcsr();
        __builtin_ia32_ldmxcsr(before);
        CHECK(status == SRU_OK, "%s", message);
        CHECK((after | 0x3f) == (wanted | 0x3f), "a call changes what stops its caller");
        CHECK(y[0] > 3e38f, "1e60 is %g", (double)y[0]);
        release();
    }
#endif
}

/* ---- Kernels are those of the instruction set that was asked for ----------------------------- */

/* The mean of a row is summed up in as many parts as a few vectors have lanes, so its last bits
   show how wide these are. A table that was taken earlier still has its own kernels. */
static void test_chosen(void)
{
    enum { ROWS = 64, N = 1000 };
    static struct { const sru_backend *op; float stats[2*ROWS]; } seen[8];
    static size_t count;
    const uint64_t state = test_random_state;
    float *x = zeros(ROWS*N), *gain = zeros(N), *bias = zeros(N), *y = junk(ROWS*N), *stats;
    sru_context c = context(1);
    size_t i;
    test_random_state = 99;
    for (i = 0; i < ROWS*N; i++) x[i] = (float)test_random();
    test_random_state = state;
    if (!CHECK(count < COUNT(seen), "too many")) return;
    CHECK(op->layernorm_forward(&c, y, seen[count].stats, x, gain, bias, ROWS, N) == SRU_OK, "%s",
          message);
    seen[count].op = op;
    for (i = 0; i < count; i++) {
        CHECK(!same(seen[i].stats, seen[count].stats, sizeof seen[i].stats),
              "%s has the kernels of %s", op->name, seen[i].op->name);
        c.op = seen[i].op;
        stats = junk(2*ROWS);
        CHECK(c.op->layernorm_forward(&c, y, stats, x, gain, bias, ROWS, N) == SRU_OK
              && same(seen[i].stats, stats, sizeof seen[i].stats), "%s has other bits beside %s",
              c.op->name, op->name);
    }
    count++;
    release();
}

/* ---- All of it for each instruction set ----------------------------------------------------- */

static const char *kernels(void)
{
    return sru_cpu()->name;
}

static void test_kernels(void)
{
    op = sru_cpu();
    test_random_state = 1;
    test_chosen();
    test_memory();
    test_pack();
    test_linear();
    test_scan();
    test_scan_memory();
    test_accuracy();
    test_extremes();
    test_layernorm();
    test_embedding();
    test_softmax();
    test_norm();
    test_adamw();
    test_dropout();
    test_denormals();
    test_rounding_mode();
    test_exceptions();
    test_errors();
    test_work();
    op = sru_cpu_bf16();
    bf16 = op != sru_cpu();
    if (bf16) {
        printf("%s\n", op->name);
        fflush(stdout);
        test_rounding();
        test_linear();
        test_scan();
        test_work();
        bf16 = 0;
    }
}

/* Whether they are offered where they should be. */
static void test_products_bf16(void)
{
    const int has = test_has_isa("avx512_bf16"), best = !strcmp(sru_cpu()->name, "avx512");
    const int differ = sru_cpu_bf16() != sru_cpu();
    if (has >= 0) CHECK(differ == (best && has), "bfloat16 in products: %s", sru_cpu_bf16()->name);
    if (differ) CHECK(!strcmp(sru_cpu_bf16()->name, "avx512_bf16"), "%s", sru_cpu_bf16()->name);
    else printf("skipped, not on this machine or not in this build: bfloat16 in products\n");
}

int main(int argc, char **argv)
{
    test_begin(argc, argv,
        "Usage: test_operators [--exhaustive]\n"
        "Compares every operator with a naive version in double, whose gradients finite\n"
        "differences confirm, for each instruction set of this machine, or for the one that\n"
        "SRU_ISA names. --exhaustive tries exp, sigmoid and tanh on all 2^32 numbers.");
    if (argc > 1) stride = 1;
    at_start = half_of_tiny();
    test_oracle();
    test_products_bf16();
    test_each_isa(kernels, test_kernels);
    return test_end();
}
