/* SRU++: the attention operator against a naive one; gradients of whole stacks against finite
   differences in double; streaming, bit for bit; and memory, which must grow linearly. */
#include "naive.h"
#include <unistd.h>

static sru_context context(int threads, char *error)
{
    sru_context c;
    memset(&c, 0, sizeof c);
    c.threads = threads;
    c.error = error;
    return c;
}

/* ---- attention, straight from the equation --------------------------------------------------- */

typedef struct naive_attention {
    size_t         T, B, M, P, H, window;
    int            causal, cross;
    const REAL    *q, *kv, *alpha;
    const uint8_t *mask_pad, *memory_mask_pad;
    const REAL    *attn_mask;
    const float   *dropped;                 /* (B,H,T,S) factors of the weights; or NULL */
    REAL          *o;
    const REAL    *dout;
    REAL          *dq, *dkv, *dalpha;       /* backward adds to all three */
} naive_attention;

static int naive_sees(const naive_attention *p, size_t t, size_t s, size_t b)
{
    const size_t place = p->M + t;
    if ((p->causal || p->window) && s > place) return 0;
    if (p->window && s + p->window <= place) return 0;
    if (s < p->M) return !(p->memory_mask_pad && p->memory_mask_pad[s*p->B + b]);
    return !(p->mask_pad && p->mask_pad[(s - p->M)*p->B + b]);
}

/* Forward, and also backward if dout is given. */
static void naive_attend(const naive_attention *p)
{
    const size_t S = p->M + (p->cross ? 0 : p->T), hd = p->P/p->H;
    const REAL scale = (REAL)(1/sqrt((double)hd)), alpha = p->alpha ? p->alpha[0] : 1;
    REAL *w = naive_array(S), *dw = naive_array(S), *a = naive_array(hd);
    size_t t, b, h, s, i;
    for (t = 0; t < p->T; t++) for (b = 0; b < p->B; b++) for (h = 0; h < p->H; h++) {
        const size_t at = (t*p->B + b)*p->P + h*hd;
        const float *keep = p->dropped ? p->dropped + ((b*p->H + h)*p->T + t)*S : NULL;
        REAL best = -1e300, sum = 0, mean = 0;
        for (s = 0; s < S; s++) {
            const REAL *key = p->kv + (s*p->B + b)*2*p->P + h*hd;
            w[s] = 0;
            for (i = 0; i < hd; i++) w[s] += p->q[at + i]*key[i]*scale;
            if (p->attn_mask) w[s] += p->attn_mask[t*S + s];
            if (!naive_sees(p, t, s, b) || w[s] < -1e30) w[s] = -1e300;
            if (w[s] > best) best = w[s];
        }
        for (s = 0; s < S; s++) {
            w[s] = w[s] <= -1e300 ? 0 : (REAL)exp((double)(w[s] - best));
            sum += w[s];
        }
        for (i = 0; i < hd; i++) a[i] = 0;
        for (s = 0; s < S; s++) {
            if (sum > 0) w[s] /= sum;
            for (i = 0; i < hd; i++)
                a[i] += w[s]*(keep ? (REAL)keep[s] : 1)
                        *p->kv[(s*p->B + b)*2*p->P + p->P + h*hd + i];
        }
        for (i = 0; i < hd; i++) p->o[at + i] = (p->alpha ? p->q[at + i] : 0) + alpha*a[i];
        if (!p->dout) continue;
        for (s = 0; s < S; s++) {
            const size_t value = (s*p->B + b)*2*p->P + p->P + h*hd;
            const REAL by = keep ? alpha*(REAL)keep[s] : alpha;
            dw[s] = 0;
            for (i = 0; i < hd; i++) {
                dw[s] += by*p->dout[at + i]*p->kv[value + i];
                p->dkv[value + i] += by*p->dout[at + i]*w[s];
            }
            mean += dw[s]*w[s];
        }
        for (i = 0; i < hd; i++) {
            if (p->dalpha) p->dalpha[0] += p->dout[at + i]*a[i];
            if (p->alpha) p->dq[at + i] += p->dout[at + i];
        }
        for (s = 0; s < S; s++) {
            const size_t key = (s*p->B + b)*2*p->P + h*hd;
            const REAL ds = w[s]*(dw[s] - mean)*scale;
            for (i = 0; i < hd; i++) {
                p->dq[at + i] += ds*p->kv[key + i];
                p->dkv[key + i] += ds*p->q[at + i];
            }
        }
    }
    free(w);
    free(dw);
    free(a);
}

static uint8_t *random_mask(size_t n, unsigned one_in)
{
    uint8_t *m = (uint8_t *)test_alloc(n);
    size_t i;
    for (i = 0; i < n; i++) m[i] = test_bits() % one_in == 0;
    return m;
}

static const char *isa(void) { return sru_cpu()->name; }

typedef struct attention_case {
    size_t T, B, M, P, H, window;
    int causal, masks, bias, plain;     /* plain: alpha is NULL */
    int climb;                          /* how scores rise from one block of 64 keys to the next */
    float dropout;
    int cross;
} attention_case;

static const attention_case attention_cases[] = {
    { 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0 }, { 5, 2, 0, 6, 2, 0, 0, 0, 0, 0, 0, 0, 0 },
    { 5, 2, 3, 6, 3, 0, 1, 0, 0, 0, 0, 0, 0 }, { 70, 1, 0, 16, 1, 0, 1, 0, 0, 0, 0, 0, 0 },
    { 64, 1, 64, 16, 1, 64, 0, 0, 0, 0, 0, 0, 0 }, { 65, 2, 7, 20, 4, 7, 0, 1, 0, 0, 0, 0, 0 },
    { 130, 1, 70, 33, 1, 1, 0, 1, 1, 0, 0, 0, 0 }, { 40, 3, 0, 24, 3, 0, 0, 1, 1, 1, 0, 0, 0 },
    { 1, 3, 200, 40, 2, 100, 0, 1, 0, 0, 0, 0, 0 }, { 200, 1, 0, 48, 1, 90, 1, 0, 1, 0, 0, 0, 0 },
    { 300, 1, 20, 24, 2, 0, 1, 0, 1, 0, 6, 0, 0 }, { 300, 1, 0, 24, 1, 0, 0, 0, 1, 0, 30, 0, 0 },
    { 700, 1, 40, 16, 1, 0, 1, 1, 0, 0, 0, 0, 0 }, { 9, 2, 4, 6, 2, 0, 0, 1, 0, 0, 0, 0.4f, 0 },
    { 150, 2, 70, 12, 3, 0, 1, 0, 1, 0, 0, 0.2f, 0 },
    { 131, 1, 0, 8, 2, 80, 0, 1, 0, 1, 6, 0.7f, 0 }, { 70, 1, 5, 150, 1, 0, 1, 0, 0, 0, 0, 0, 0 },
    { 9, 2, 0, 162, 2, 0, 0, 1, 0, 0, 0, 0.1f, 0 }, { 1, 3, 70, 32, 2, 0, 0, 1, 0, 1, 0, 0, 1 },
    { 66, 2, 5, 20, 2, 0, 0, 1, 1, 0, 0, 0.3f, 1 }, { 7, 1, 140, 24, 1, 0, 0, 0, 0, 0, 6, 0, 1 },
    { 20, 2, 1, 6, 3, 0, 0, 0, 0, 0, 0, 0, 1 }, { 70, 2, 128, 20, 2, 0, 0, 1, 0, 0, 0, 0, 1 },
    { 65, 43, 0, 16, 4, 0, 1, 0, 0, 0, 0, 0, 0 }    /* backward takes the heads in several lots */
};

static REAL attention_loss(void *arg)
{
    const naive_attention *p = (const naive_attention *)arg;
    naive_attention only = *p;
    size_t i, n = p->T*p->B*p->P;
    REAL loss = 0;
    only.dout = NULL;
    naive_attend(&only);
    for (i = 0; i < n; i++) loss += p->o[i]*p->dout[i];
    return loss;
}

/* A copy of column b alone of an array (steps,B,...) with so many bytes each; NULL stays NULL. */
static void *column(const void *a, size_t steps, size_t B, size_t b, size_t bytes)
{
    char *one = a ? (char *)test_alloc(steps*bytes) : NULL;
    size_t i;
    for (i = 0; i < steps && one; i++)
        memcpy(one + i*bytes, (const char *)a + (i*B + b)*bytes, bytes);
    return one;
}

/* Runs sequence b of an attention alone, forward and backward: it must give the same bits. */
static void check_alone(const sru_context *c, const sru_attention *whole, size_t b)
{
    const size_t T = whole->T, B = whole->B, P = whole->P;
    const size_t S = whole->M + (whole->cross ? 0 : T);
    sru_attention s = *whole;
    void *had[9] = {
        column(s.q, T, B, b, P*4), column(s.kv, S, B, b, 2*P*4), column(s.dout, T, B, b, P*4),
        column(s.mask_pad, T, B, b, 1), column(s.memory_mask_pad, s.M, B, b, 1),
        column(s.o, T, B, b, P*4), column(s.a, T, B, b, P*4), column(s.dq, T, B, b, P*4),
        column(s.dkv, S, B, b, 2*P*4)
    };
    size_t i;
    s.B = 1;
    s.q = (float *)had[0];
    s.kv = (float *)had[1];
    s.dout = (float *)had[2];
    s.mask_pad = (uint8_t *)had[3];
    s.memory_mask_pad = (uint8_t *)had[4];
    s.o = test_floats(T*P);
    s.a = test_floats(T*P);
    s.stats = test_floats(2*(size_t)s.H*T);
    s.dq = test_floats(T*P);
    s.dkv = test_floats(S*2*P);
    s.dalpha = NULL;
    CHECK(c->op->attention_forward(c, &s) == SRU_OK, "%s", c->error);
    CHECK(c->op->attention_backward(c, &s) == SRU_OK, "%s", c->error);
    CHECK(!memcmp(s.o, had[5], T*P*4) && !memcmp(s.a, had[6], T*P*4)
          && !memcmp(s.stats, whole->stats + 2*b*(size_t)s.H*T, 2*(size_t)s.H*T*4)
          && !memcmp(s.dq, had[7], T*P*4) && !memcmp(s.dkv, had[8], S*2*P*4),
          "T %d M %d: sequence %d has other bits alone", (int)T, (int)s.M, (int)b);
    for (i = 0; i < 9; i++) free(had[i]);
    free(s.o); free(s.a); free(s.stats); free(s.dq); free(s.dkv);
}

/* Makes the arrays for attention's results and gradients. */
static void put_results(sru_attention *s, float *o, float *a, float *stats, const float *dout,
                        float *dq, float *dkv)
{
    s->o = o;
    s->a = a;
    s->stats = stats;
    s->dout = dout;
    s->dq = dq;
    s->dkv = dkv;
}

/* Checks the naive backward by finite differences, then the library by the naive one. */
static void run_attention_case(const attention_case *k, int check_naive)
{
    const size_t n = k->T*k->B*k->P, S = k->M + (k->cross ? 0 : k->T), m = S*k->B*2*k->P;
    float *q = test_floats(n), *kv = test_floats(m), *dout = test_floats(n), alpha = 0.7f;
    float *bias = test_floats(k->T*S), *o = test_floats(n), *a = test_floats(n);
    float *stats = test_floats(2*k->B*k->H*k->T), *dq = test_floats(n), *dkv = test_floats(m);
    float *dropped = test_floats(k->B*k->H*k->T*S);
    float dalpha = 0.25f, first_dalpha = 0, *first = test_floats(2*n + m);
    uint8_t *pad = random_mask(k->T*k->B, 4), *memory_pad = random_mask(k->M*k->B, 3);
    REAL wide_alpha = 0.7f, wide_dalpha = 0.25f;
    naive_attention p;
    sru_attention s;
    char error[SRU_ERROR_SIZE] = "";
    sru_context c = context(1, error);
    size_t i;
    int threads;
    test_fill(q, n, 2);
    test_fill(kv, m, 1);
    test_fill(dout, n, 1);
    test_fill(bias, k->T*S, 1);
    for (i = 0; i < k->T*S; i++)
        if (test_bits() % 5 == 0) bias[i] = -2e30f;
    for (i = 0; i < k->T*S; i++) bias[i] += (float)(k->climb*(int)(i % S/64));
    for (i = 0; i < S && k->bias; i++) bias[i] = -3e38f;    /* the first query sees nothing */
    for (i = 1; i < k->T*S; i += 2)
        if (bias[i] < -1e30f) test_make_minus_infinity(bias + i);

    c.op = sru_cpu();
    c.seed = 5;
    c.step = 6;
    CHECK(!c.op->dropout(&c, dropped, NULL, NULL, k->dropout, 7, 0, 1, k->B*k->H*k->T*S), "%s",
          error);

    memset(&p, 0, sizeof p);
    p.T = k->T;
    p.B = k->B;
    p.M = k->M;
    p.P = k->P;
    p.H = k->H;
    p.window = k->window;
    p.causal = k->causal;
    p.cross = k->cross;
    p.q = naive_wide(q, n);
    p.kv = naive_wide(kv, m);
    p.alpha = k->plain ? NULL : &wide_alpha;
    p.mask_pad = k->masks ? pad : NULL;
    p.memory_mask_pad = k->masks ? memory_pad : NULL;
    p.attn_mask = k->bias ? naive_wide(bias, k->T*S) : NULL;
    p.dropped = k->dropout > 0 ? dropped : NULL;
    p.o = naive_array(n);
    p.dout = naive_wide(dout, n);
    p.dq = naive_array(n);
    p.dkv = naive_array(m);
    p.dalpha = k->plain ? NULL : &wide_dalpha;
    naive_attend(&p);
    if (check_naive) {
        naive_variable v[3];
        REAL just_alpha = wide_dalpha - (REAL)0.25f;
        v[0].name = "q";
        v[0].value = (REAL *)(uintptr_t)p.q;
        v[0].gradient = p.dq;
        v[0].n = n;
        v[1].name = "kv";
        v[1].value = (REAL *)(uintptr_t)p.kv;
        v[1].gradient = p.dkv;
        v[1].n = m;
        v[2].name = "alpha";
        v[2].value = &wide_alpha;
        v[2].gradient = &just_alpha;
        v[2].n = k->plain ? 0 : 1;
        naive_check_gradient("attention", attention_loss, &p, v, 3);
        attention_loss(&p);             /* computes o again, from the original values */
    }

    memset(&s, 0, sizeof s);
    s.T = k->T;
    s.B = k->B;
    s.M = k->M;
    s.P = k->P;
    s.H = (int)k->H;
    s.dropout = k->dropout;
    s.id = 7;
    s.window = k->window;
    s.causal = k->causal;
    s.cross = k->cross;
    s.q = q;
    s.kv = kv;
    s.alpha = k->plain ? NULL : &alpha;
    s.mask_pad = p.mask_pad;
    s.memory_mask_pad = p.memory_mask_pad;
    s.attn_mask = k->bias ? bias : NULL;
    put_results(&s, o, a, stats, dout, dq, dkv);
    for (threads = 1; threads <= 6; threads += threads < 3 ? 1 : 3) {
        double eo, eq, ekv, limit = k->climb ? 1e-5 : 1e-6;     /* scores of 100 are 4e-6 off */
        c.threads = threads;
        dalpha = 0.25f;
        s.dalpha = k->plain ? NULL : &dalpha;
        /* so that what is not written shows */
        memset(o, 0xff, n*4);
        memset(a, 0xff, n*4);
        memset(stats, 0xff, 2*k->B*k->H*k->T*4);
        memset(dq, 0xff, n*4);
        memset(dkv, 0xff, m*4);
        CHECK(c.op->attention_forward(&c, &s) == SRU_OK, "%s", error);
        CHECK(c.op->attention_backward(&c, &s) == SRU_OK, "%s", error);
        if (threads == 1) {
            memcpy(first, o, n*4);
            memcpy(first + n, dq, n*4);
            memcpy(first + 2*n, dkv, m*4);
            first_dalpha = dalpha;
        }
        CHECK(!memcmp(first, o, n*4) && !memcmp(first + n, dq, n*4)
              && !memcmp(first + 2*n, dkv, m*4) && !memcmp(&first_dalpha, &dalpha, 4),
              "%d threads give other bits", threads);
        eo = test_error_double(o, p.o, n);
        eq = test_error_double(dq, p.dq, n);
        ekv = test_error_double(dkv, p.dkv, m);
        CHECK(eo < limit && eq < 2*limit && ekv < 2*limit,
              "%s T %d M %d P %d H %d window %d: errors %g, %g, %g", c.op->name, (int)k->T,
              (int)k->M, (int)k->P, (int)k->H, (int)k->window, eo, eq, ekv);
        CHECK(k->plain || fabs((double)dalpha - (double)wide_dalpha) < 2e-6*(double)n,
              "dalpha is %g, should be %g", (double)dalpha, (double)wide_dalpha);
    }
    if (k->bias)
        CHECK(o[0] == (k->plain ? 0 : q[0]) && a[0] == 0 && stats[0] == 0 && stats[1] == 0,
              "a query that sees nothing, of %g, gives %g, %g, %g, %g", (double)q[0], (double)o[0],
              (double)a[0], (double)stats[0], (double)stats[1]);
    if (k->dropout == 0) check_alone(&c, &s, k->B - 1);
    free(q); free(kv); free(dout); free(bias); free(o); free(a); free(stats); free(dq); free(dkv);
    free(first); free(pad); free(memory_pad); free(dropped);
    free((REAL *)(uintptr_t)p.q); free((REAL *)(uintptr_t)p.kv); free((REAL *)(uintptr_t)p.dout);
    free((REAL *)(uintptr_t)p.attn_mask); free(p.o); free(p.dq); free(p.dkv);
}

static void test_attention(void)
{
    static int checked;
    size_t i;
    for (i = 0; i < sizeof attention_cases/sizeof *attention_cases; i++)
        run_attention_case(attention_cases + i, !checked && attention_cases[i].T < 50);
    checked = 1;
}

/* Fills queries, keys and values with random numbers for an attention that writes o. */
static sru_attention random_attention(float *q, float *kv, float *o, size_t T, size_t B, int H,
                                      size_t P)
{
    sru_attention s;
    memset(&s, 0, sizeof s);
    test_fill(q, T*B*P, 2);
    test_fill(kv, T*B*2*P, 1);
    s.T = T;
    s.B = B;
    s.P = P;
    s.H = H;
    s.q = q;
    s.kv = kv;
    s.o = o;
    return s;
}

/* A step that sees no later steps gets the same bits however many of these there are, although the
   last block of keys is then a short one. */
static void test_attention_prefixes(void)
{
    enum { T = 140, B = 2, H = 2, P = 40 };
    float *q = test_floats(T*B*P), *kv = test_floats(T*B*2*P), *o = test_floats(T*B*P);
    float *whole = test_floats(T*B*P);
    char error[SRU_ERROR_SIZE] = "";
    const sru_context c = context(1, error);
    sru_attention s = random_attention(q, kv, whole, T, B, H, P);
    s.causal = 1;
    CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
    s.o = o;
    for (s.T = 1; s.T < T; s.T++) {
        CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
        CHECK(!memcmp(o, whole, s.T*B*P*4), "the first %d of %d steps have other bits by "
              "themselves", (int)s.T, T);
    }
    free(q); free(kv); free(o); free(whole);
}

/* Rings of one's own: in calls of any length, o is that of a window, even after calls without
   queries. A padded step leaves its o and the ring alone, and nothing is written behind a ring. */
static void test_attention_rings(void)
{
    enum { T = 200, B = 2, H = 2, P = 10, WINDOW = 70, LENGTH = 2 + 192*(P + H*16), MORE = 3 };
    static const size_t parts[] = { 1, 33, T };
    float *q = test_floats(T*B*P), *kv = test_floats(T*B*2*P), *o = test_floats(T*B*P);
    float *whole = test_floats(T*B*P), *rings = test_floats(B*(LENGTH + MORE));
    char error[SRU_ERROR_SIZE] = "";
    const sru_context c = context(1, error);
    uint8_t pad[T*B];
    sru_attention s = random_attention(q, kv, whole, T, B, H, P);
    size_t i, t, b, call;
    memset(pad, 1, sizeof pad);
    s.window = WINDOW;
    CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
    s.ring = rings;
    s.ld_ring = LENGTH + MORE;
    for (i = 0; i < sizeof parts/sizeof *parts; i++) {
        memset(rings, 0, B*s.ld_ring*4);
        for (t = 0; t < T; t += s.T) {
            s.T = T - t < parts[i] ? T - t : parts[i];
            s.q = q + t*B*P;
            s.kv = kv + t*B*2*P;
            s.o = o + t*B*P;
            s.mask_pad = NULL;
            CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
            s.mask_pad = pad;
            CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
        }
        CHECK(!memcmp(o, whole, T*B*P*4), "rings in calls of %d steps give other bits than a "
              "window", (int)parts[i]);
        for (b = 0; b < B; b++)
            test_constant("what follows a ring", rings + b*s.ld_ring + LENGTH, MORE, 0);
        memset(rings, 0, B*s.ld_ring*4);
        memset(o, 0xff, T*B*P*4);
        for (t = call = 0; t < T; t += s.T, call++) {
            s.T = T - t < parts[i] ? T - t : parts[i];
            s.q = call % 3 == 2 ? NULL : q + t*B*P;
            s.kv = kv + t*B*2*P;
            s.o = s.q ? o + t*B*P : NULL;
            s.mask_pad = NULL;
            CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
            CHECK(!s.q || !memcmp(s.o, whole + t*B*P, s.T*B*P*4), "step %d, in calls of %d, some "
                  "of them without queries, has other bits than in a window", (int)t,
                  (int)parts[i]);
        }
    }
    free(q); free(kv); free(o); free(whole); free(rings);
}

/* Cross-attention to rings, which it leaves as they are, has the bits of that to memory, whatever
   the lengths of calls and of those that put the keys in. Padded keys are not put in: then blocks
   hold others, and sums are rounded otherwise. A padded query leaves its o alone. */
static void test_attention_cross(void)
{
    enum { T = 130, B = 2, M = 150, H = 2, P = 10, LENGTH = 2 + 256*(P + H*16), HALF = T*B*P/2 };
    static const size_t parts[] = { 1, 3, 64, T, M };
    static float stats[2*B*H*T];
    float *q = test_floats(M*B*P), *kv = test_floats(M*B*2*P), *o = test_floats(T*B*P);
    float *whole = test_floats(T*B*P), *rings = test_floats(B*LENGTH);
    float *kept = test_floats(B*LENGTH);
    char error[SRU_ERROR_SIZE] = "";
    sru_context c = context(1, error);
    uint8_t *memory_pad = random_mask(M*B, 4), pad[T*B] = { 0 };
    const sru_attention begin = random_attention(q, kv, whole, M, B, H, P);
    sru_attention s, put = begin;
    size_t i, t;
    int padded;
    put.window = M + 1;
    put.ring = rings;
    put.ld_ring = LENGTH;
    put.q = put.o = NULL;
    for (padded = 0; padded < 2; padded++) {
        s = begin;
        s.T = T;
        s.M = M;
        s.cross = 1;
        s.memory_mask_pad = padded ? memory_pad : NULL;
        CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
        s.M = 0;
        s.kv = NULL;
        s.memory_mask_pad = NULL;
        s.window = put.window;
        s.ring = rings;
        s.ld_ring = LENGTH;
        for (i = 0; i < sizeof parts/sizeof *parts; i++) {
            memset(rings, 0, B*LENGTH*4);
            for (t = 0; t < M; t += put.T) {
                put.T = M - t < parts[i] ? M - t : parts[i];
                put.kv = kv + t*B*2*P;
                put.mask_pad = padded ? memory_pad + t*B : NULL;
                CHECK(sru_cpu()->attention_forward(&c, &put) == SRU_OK, "%s", error);
            }
            memcpy(kept, rings, B*LENGTH*4);
            for (c.threads = 1; c.threads <= 9; c.threads += 4) {   /* 9 share each ring */
                memset(o, 0xff, T*B*P*4);
                for (t = 0; t < T; t += s.T) {
                    s.T = T - t < parts[i] ? T - t : parts[i];
                    s.q = q + t*B*P;
                    s.o = o + t*B*P;
                    CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
                }
                CHECK(padded ? test_error(o, whole, T*B*P) < 1e-6 : !memcmp(o, whole, T*B*P*4),
                      "%d threads, calls of %d steps: not as with memory", c.threads,
                      (int)parts[i]);
                CHECK(!memcmp(rings, kept, B*LENGTH*4), "rings have changed");
            }
        }
    }
    memcpy(whole, o, T*B*P*4);
    memset(pad, 1, T*B/2);
    s.T = T;
    s.q = q;
    s.o = o;
    s.mask_pad = pad;
    test_fill(o, HALF, 1);
    memcpy(kept, o, HALF*4);
    CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
    CHECK(!memcmp(o, kept, HALF*4), "a padded query wrote o");
    CHECK(!memcmp(o + HALF, whole + HALF, HALF*4), "after padded queries, others have other bits");

    s.mask_pad = NULL;
    s.a = kept;
    s.stats = stats;
    CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
    CHECK(!memcmp(kept, o, T*B*P*4), "without alpha, a is not o");
    for (i = 0; i < B*H*T; i++) CHECK(stats[2*i + 1] > 0, "stats of a step are missing");
    memset(kept, 0xff, T*B*P*4);
    memset(stats, 0xff, sizeof stats);
    memset(rings, 0, B*LENGTH*4);
    CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
    test_constant("attention to an empty ring", o, T*B*P, 0);
    test_constant("a of an empty ring", kept, T*B*P, 0);
    test_constant("stats of an empty ring", stats, 2*B*H*T, 0);
    s.alpha = q;
    CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
    CHECK(!memcmp(o, q, T*B*P*4), "with an empty ring, o is not q");
    for (i = 0; i < 7; i++) {               /* what cross-attention does not go with */
        s.ring = i < 4 ? NULL : rings;
        s.causal = i == 1 || i == 4;
        s.window = i == 2 || i > 3 ? M + 1 : 0;
        s.M = i == 0 ? 0 : i < 4 ? (size_t)M : i == 5;
        s.kv = i == 3 ? NULL : kv;
        s.q = i == 6 ? NULL : q;
        CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_EINVAL, "case %d is taken", (int)i);
    }
    free(q); free(kv); free(o); free(whole); free(rings); free(kept); free(memory_pad);
}

/* Cross-attention of sequence b alone to the last `most` of its M keys that are not padded, or to
   all of these if they are fewer: o (T,P). */
static void attend_to_last(REAL *o, const sru_attention *s, const float *kv, const uint8_t *pad,
                           size_t M, size_t b, size_t most)
{
    const size_t T = s->T, B = s->B, P = s->P;
    float *q = (float *)column(s->q, T, B, b, P*4), *keys = test_floats(M*2*P);
    const REAL alpha = s->alpha ? (REAL)s->alpha[0] : 1;
    naive_attention p;
    size_t m, n = 0, from;
    for (m = 0; m < M; m++)
        if (!(pad && pad[m*B + b])) memcpy(keys + n++*2*P, kv + (m*B + b)*2*P, 2*P*4);
    from = n > most ? n - most : 0;
    memset(&p, 0, sizeof p);
    p.T = T;
    p.B = 1;
    p.M = n - from;
    p.P = P;
    p.H = (size_t)s->H;
    p.cross = 1;
    p.q = naive_wide(q, T*P);
    p.kv = naive_wide(keys + from*2*P, p.M*2*P);
    p.alpha = s->alpha ? &alpha : NULL;
    p.o = o;
    naive_attend(&p);
    free(q); free(keys); free((REAL *)(uintptr_t)p.q); free((REAL *)(uintptr_t)p.kv);
}

/* A ring that has taken in more keys than its window keeps the last window - 1 that are not padded,
   and cross-attention sees these alone. However long the calls are that put the keys in, even if
   longer than the window, the ring comes out the same; padded keys leave it as it is. */
static void test_attention_kept(void)
{
    enum { T = 5, MOST = 2, M = 300, P = 10, C = 256 };     /* C: keys that most rings hold */
    static const size_t windows[] = { 1, 2, 64, 65, 66, 130, 193 }, parts[] = { M, 1, 37, 200 };
    static float q[M*MOST*P], kv[M*MOST*2*P], o[T*MOST*P], first_o[T*MOST*P];
    static float rings[MOST*(2 + C*(P + MOST*16))], first[sizeof rings/4];
    static REAL should[T*P];
    const float alpha = 0.7f;
    char error[SRU_ERROR_SIZE] = "";
    sru_context c = context(1, error);
    uint8_t *random_pad = random_mask(M*MOST, 4), *all_padded = random_mask(M*MOST, 1);
    size_t B, w, i, t, b;
    for (B = 1; B <= MOST; B++) {                           /* with as many heads */
        const sru_attention begin = random_attention(q, kv, o, M, B, (int)B, P);
        for (w = 0; w < 2*sizeof windows/sizeof *windows; w++) {
            const size_t window = windows[w/2], slots = (window + 62)/64*64 + 64;
            const int padded = w % 2 == 1;
            sru_attention put = begin, see = begin;
            put.window = see.window = window;
            put.ring = see.ring = rings;
            put.ld_ring = see.ld_ring = 2 + slots*(P + B*16);
            put.q = put.o = NULL;
            see.T = T;
            see.cross = 1;
            see.kv = NULL;
            see.alpha = padded ? &alpha : NULL;
            for (i = 0; i < sizeof parts/sizeof *parts; i++) {
                memset(rings, 0, sizeof rings);
                for (t = 0; t < M; t += put.T) {
                    put.T = M - t < parts[i] ? M - t : parts[i];
                    put.kv = kv + t*B*2*P;
                    put.mask_pad = padded ? random_pad + t*B : NULL;
                    CHECK(sru_cpu()->attention_forward(&c, &put) == SRU_OK, "%s", error);
                    put.mask_pad = all_padded;
                    CHECK(t || sru_cpu()->attention_forward(&c, &put) == SRU_OK, "%s", error);
                }
                if (i == 0) memcpy(first, rings, sizeof rings);
                CHECK(!memcmp(rings, first, sizeof rings), "window %d: keys put in by %d make "
                      "another ring", (int)window, (int)parts[i]);
            }
            for (c.threads = 1; c.threads <= 3; c.threads++) {      /* they share a single head */
                memset(o, 0xff, sizeof o);
                CHECK(sru_cpu()->attention_forward(&c, &see) == SRU_OK, "%s", error);
                if (c.threads == 1) memcpy(first_o, o, sizeof o);
                CHECK(!memcmp(o, first_o, T*B*P*4), "%d threads give other bits", c.threads);
            }
            c.threads = 1;
            for (b = 0; b < B; b++) {
                float *got = (float *)column(o, T, B, b, P*4);
                double off;
                attend_to_last(should, &see, kv, padded ? random_pad : NULL, M, b, window - 1);
                off = test_error_double(got, should, T*P);
                CHECK(off < 1e-6, "window %d, %s keys: what sequence %d of %d sees is off by %g",
                      (int)window, padded ? "padded" : "all", (int)b, (int)B, off);
                free(got);
            }
        }
    }
    free(random_pad); free(all_padded);
}

/* Counters that a ring cannot have count as 0, whether keys are put in or only seen. */
static void test_attention_counters(void)
{
    enum { T = 3, H = 2, P = 10, WINDOW = 70, M = 250, C = 192, LENGTH = 2 + C*(P + H*16) };
    static float q[M*P], kv[M*2*P], o[T*P], should[T*P], stats[2*H*T];
    static float filled[LENGTH], ring[LENGTH], after[LENGTH], kept[LENGTH];
    float wrong[2][5] = { { 0, -1, C, 1e30f, 0 }, { 0, -1, WINDOW, 1e30f, 0 } };
    char error[SRU_ERROR_SIZE] = "";
    const sru_context c = context(1, error);
    sru_attention put = random_attention(q, kv, NULL, M, 1, H, P), see = put;
    int which, i;
    test_make_nan(&wrong[0][4]);
    test_make_nan(&wrong[1][4]);
    put.window = see.window = WINDOW;
    put.ld_ring = see.ld_ring = LENGTH;
    put.ring = filled;
    put.q = NULL;
    memset(filled, 0, sizeof filled);
    CHECK(sru_cpu()->attention_forward(&c, &put) == SRU_OK, "%s", error);
    CHECK(filled[0] == M - C && filled[1] == WINDOW - 1, "after %d keys, a ring's counters are %g "
          "and %g", M, (double)filled[0], (double)filled[1]);
    put.T = see.T = T;
    put.ring = see.ring = ring;
    see.cross = 1;
    see.kv = NULL;
    see.o = o;
    see.stats = stats;
    for (which = 1; which < 4; which++)         /* the first counter, the second, or both */
        for (i = 0; i < 5; i++) {
            memcpy(ring, filled, sizeof ring);
            if (which & 1) ring[0] = wrong[0][i];
            if (which & 2) ring[1] = wrong[1][i];
            memcpy(kept, ring, sizeof ring);
            memset(o, 0xff, sizeof o);
            CHECK(sru_cpu()->attention_forward(&c, &see) == SRU_OK, "%s", error);
            CHECK(!memcmp(ring, kept, sizeof ring), "cross-attention has changed a ring");
            if (which & 2) {
                test_constant("o of a ring without a number of keys", o, T*P, 0);
                test_constant("its stats", stats, 2*H*T, 0);
            }
            CHECK(sru_cpu()->attention_forward(&c, &put) == SRU_OK, "%s", error);
            if (i == 0) {
                memcpy(should, o, sizeof o);
                memcpy(after, ring, sizeof ring);
            }
            CHECK(!memcmp(o, should, sizeof o), "the counters %g and %g are not as good as 0",
                  (double)kept[0], (double)kept[1]);
            CHECK(!memcmp(ring, after, sizeof ring), "after the counters %g and %g, keys make "
                  "another ring", (double)kept[0], (double)kept[1]);
        }
}

/* Without queries, memory gets gradients of 0, and what follows these is not written. */
static void test_attention_empty(void)
{
    enum { M = 3, B = 2, P = 4, N = M*B*2*P, MORE = 8 };
    float dkv[N + MORE];
    char error[SRU_ERROR_SIZE] = "";
    const sru_context c = context(1, error);
    sru_attention s;
    size_t i;
    memset(&s, 0, sizeof s);
    s.B = B;
    s.M = M;
    s.P = P;
    s.H = 1;
    s.dkv = dkv;
    for (i = 0; i < N + MORE; i++) dkv[i] = 1;
    CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
    CHECK(sru_cpu()->attention_backward(&c, &s) == SRU_OK, "%s", error);
    test_constant("gradients of what no query sees", dkv, N, 0);
    test_constant("what follows them", dkv + N, MORE, 1);
    s.dkv = NULL;
    CHECK(sru_cpu()->attention_backward(&c, &s) == SRU_OK, "%s", error);
}

/* One head, and what it computed the first time. */
typedef struct head {
    sru_attention s;
    size_t N;                                   /* T*P */
    float *q, *kv, *dout, *mask, *o, *stats;
    float *results, *first;                     /* a, dq, dkv */
} head;

static head new_head(size_t T, size_t P, double scale)
{
    const size_t N = T*P;
    head h;
    memset(&h, 0, sizeof h);
    h.N = N;
    h.q = test_floats(N), h.kv = test_floats(2*N), h.dout = test_floats(N), h.o = test_floats(N);
    h.mask = test_floats(T*T), h.stats = test_floats(2*T);
    h.results = test_floats(4*N), h.first = test_floats(4*N);
    test_fill(h.q, N, scale);
    test_fill(h.kv, 2*N, 1);
    test_fill(h.dout, N, 2);
    h.s.T = T;
    h.s.B = 1;
    h.s.H = 1;
    h.s.P = P;
    h.s.q = h.q;
    h.s.kv = h.kv;
    put_results(&h.s, h.o, h.results, h.stats, h.dout, h.results + N, h.results + 2*N);
    return h;
}

/* Runs forward and backward. Returns whether they give the bits of the first run, or are that. */
static int as_at_first(const head *h, int first)
{
    char error[SRU_ERROR_SIZE] = "";
    const sru_context c = context(0, error);
    CHECK(sru_cpu()->attention_forward(&c, &h->s) == SRU_OK, "%s", error);
    CHECK(sru_cpu()->attention_backward(&c, &h->s) == SRU_OK, "%s", error);
    if (first) memcpy(h->first, h->results, 4*h->N*4);
    return !memcmp(h->first, h->results, 4*h->N*4);
}

static void free_head(head *h)
{
    free(h->q); free(h->kv); free(h->dout); free(h->mask); free(h->o); free(h->stats);
    free(h->results); free(h->first);
}

/* A number added to all scores of a query changes nothing, even as large as a finite mask adds. */
static void test_attention_masked(void)
{
    enum { T = 70, P = 8 };
    static const float added[] = { 0, -1e4f, 1e4f, -65504, 1e6f, -1e9f, 1e9f };
    head h = new_head(T, P, 0);                 /* scores of 0, which no rounding changes */
    size_t i, j;
    h.s.attn_mask = h.mask;
    for (i = 0; i < sizeof added/sizeof *added; i++) {
        for (j = 0; j < T*T; j++) h.mask[j] = added[i];
        CHECK(as_at_first(&h, !i), "with %g added to all scores, other results", (double)added[i]);
    }
    free_head(&h);
}

/* What is not seen counts for nothing, however large it is, if it is finite. So do its scores and
   dout.v, which overflow here. */
static void test_attention_hidden(void)
{
    enum { T = 21, P = 8 };
    head h = new_head(T, P, 2);
    uint8_t pad[T] = { 0 };
    size_t i, j, k;
    for (j = 0; j < T; j++) pad[j] = j % 3 == 1;
    for (k = 0; k < 6; k++) {           /* hidden by mask_pad, by -inf, by the lowest float */
        h.s.mask_pad = k < 2 ? pad : NULL;
        h.s.attn_mask = k < 2 ? NULL : h.mask;
        for (i = 0; i < T*T; i++) {
            h.mask[i] = pad[i % T] ? -3.4028234e38f : 0;
            if (pad[i % T] && k < 4) test_make_minus_infinity(h.mask + i);
        }
        for (j = 0; j < T; j++)         /* of both signs, so that some scores are NaN */
            for (i = 0; i < 2*P && pad[j]; i++)
                h.kv[j*2*P + i] = k % 2 == 0 ? 1 : i % 3 ? 3e38f : -3e38f;
        CHECK(as_at_first(&h, !k), "%s: with other values in what is not seen, other results (%d)",
              isa(), (int)k);
    }
    free_head(&h);
}

/* If one weight is 1 and all others are 0, nothing flows back through the softmax: the mean that is
   subtracted equals what was there, to the last bit, however large the scores are. */
static void test_attention_saturated(void)
{
    enum { T = 100, B = 2, H = 2, P = 60, N = T*B*P };
    float *q = test_floats(N), *kv = test_floats(2*N), *dout = test_floats(N), *o = test_floats(N);
    float *a = test_floats(N), *stats = test_floats(2*T*B*H), *dq = test_floats(N);
    float *dkv = test_floats(2*N), alpha = 0.7f;
    char error[SRU_ERROR_SIZE] = "";
    const sru_context c = context(0, error);
    sru_attention s;
    size_t i;
    memset(&s, 0, sizeof s);
    test_fill(q, N, 1);
    test_fill(kv, 2*N, 1);
    test_fill(dout, N, 1);
    for (i = 0; i < N; i++) q[i] += 2;          /* and later keys are longer than earlier ones */
    for (i = 0; i < 2*N; i++)
        if (i % (2*P) < P) kv[i] = 300.0f*(float)(i/(2*B*P) + 1);
    s.B = B;
    s.P = P;
    s.H = H;
    s.q = q;
    s.kv = kv;
    s.alpha = &alpha;
    put_results(&s, o, a, stats, dout, dq, dkv);
    for (s.T = 1; s.T <= T; s.T += 9) {
        double most = 0;
        CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_OK, "%s", error);
        CHECK(sru_cpu()->attention_backward(&c, &s) == SRU_OK, "%s", error);
        for (i = 0; i < s.T*B*2*P; i++)
            if (i % (2*P) < P && !(fabs((double)dkv[i]) <= most)) most = fabs((double)dkv[i]);
        CHECK(most < 1e-30, "%d steps: a key's gradient of %g", (int)s.T, most);
        CHECK(!memcmp(dq, dout, s.T*B*P*4), "%d steps: queries have another gradient than o",
              (int)s.T);
    }
    free(q); free(kv); free(dout); free(o); free(a); free(stats); free(dq); free(dkv);
}

/* ---- whole stacks ---------------------------------------------------------------------------- */

typedef struct stack {
    sru_model      model;
    size_t         T, B, M;
    const REAL    *weights, *x, *state, *attn_mask;     /* state (B,S) */
    const REAL    *memory[SRU_MAX_LAYERS];
    const uint8_t *mask_pad, *memory_mask_pad;
    const REAL    *dh, *dstate;
} stack;

static const REAL *stack_weight(const stack *p, int layer, const char *end)
{
    char name[64];
    ptrdiff_t at;
    sprintf(name, layer < 0 ? "%s" : "transform_module.%s", end);
    at = naive_find(&p->model, layer, name);
    return at < 0 ? NULL : p->weights + at;
}

/* sum(h*dh) + sum(c*dstate) of an SRU++ stack, in double. */
static REAL stack_loss(void *arg)
{
    const stack *p = (const stack *)arg;
    const sru_config *f = &p->model.config;
    const size_t N = naive_width(f), T = p->T, B = p->B, rows = T*B, M = p->M;
    const size_t S = (size_t)naive_layers(f)*N;
    const size_t H = f->num_heads ? (size_t)f->num_heads : 1, P = (size_t)f->projection_size;
    REAL loss = 0, *x;
    size_t i, b, width = naive_layer_input(f, 0);
    int l;
    x = naive_array(rows*(N > width ? N : width));
    if (naive_input_first(f))
        naive_linear_forward(x, p->x, stack_weight(p, -1, "input_to_hidden.weight"), NULL, rows, N,
                             (size_t)f->input_size);
    else
        memcpy(x, p->x, rows*width*sizeof(REAL));
    for (l = 0; l < naive_layers(f); l++) {
        const size_t I = naive_layer_input(f, l), K = (size_t)naive_matrices(f, l);
        const REAL *gain = p->weights + naive_find(&p->model, l, "layer_norm.weight");
        const REAL *shift = p->weights + naive_find(&p->model, l, "layer_norm.bias");
        REAL *a = naive_array(rows*I), *z = naive_array((M*B + rows)*P), *o = naive_array(rows*P);
        REAL *kv = naive_array((M*B + rows)*2*P), *u = naive_array(rows*K*N);
        REAL *h = naive_array(rows*N), *c = naive_array(rows*N);
        REAL *c0 = naive_array(B*N), *cT = naive_array(B*N);
        const int attention = stack_weight(p, l, "alpha") != NULL;
        const REAL *w = stack_weight(p, l, attention ? "linear3.weight" : "linear2.weight");
        naive_scan scan;
        if (f->layer_norm && !f->normalize_after)
            naive_layernorm_forward(a, NULL, x, gain, shift, rows, I);
        else
            memcpy(a, x, rows*I*sizeof(REAL));
        if (M && p->memory[l])
            naive_linear_forward(z, p->memory[l], stack_weight(p, l, "linear1.weight"), NULL, M*B,
                                 P, I);
        naive_linear_forward(z + M*B*P, a, stack_weight(p, l, "linear1.weight"), NULL, rows, P, I);
        if (attention) {
            naive_attention s;
            naive_linear_forward(kv, z, stack_weight(p, l, "linear2.weight"), NULL, M*B + rows,
                                 2*P, P);
            memset(&s, 0, sizeof s);
            s.T = T;
            s.B = B;
            s.M = M;
            s.P = P;
            s.H = H;
            s.window = (size_t)f->window;
            s.causal = f->causal;
            s.q = z + M*B*P;
            s.kv = kv;
            s.alpha = stack_weight(p, l, "alpha");
            s.mask_pad = p->mask_pad;
            s.memory_mask_pad = p->memory_mask_pad;
            s.attn_mask = p->attn_mask;
            s.o = o;
            naive_attend(&s);
        } else {
            memcpy(o, z + M*B*P, rows*P*sizeof(REAL));
        }
        if (!f->no_attn_layer_norm)
            naive_layernorm_forward(o, NULL, o, stack_weight(p, l, "layer_norm.weight"),
                                    stack_weight(p, l, "layer_norm.bias"), rows, P);
        for (b = 0; b < B; b++)
            memcpy(c0 + b*N, p->state + b*S + (size_t)l*N, N*sizeof(REAL));
        memset(&scan, 0, sizeof scan);
        scan.T = T;
        scan.B = B;
        scan.N = N;
        scan.I = P;
        scan.K = (int)K;
        scan.bidirectional = f->bidirectional;
        scan.use_tanh = f->use_tanh;
        scan.scale_x = naive_scale_x(f);
        scan.a = o;
        scan.w = w;
        scan.u = u;
        scan.x = f->no_skip_term ? NULL : x;
        scan.v = p->weights + naive_find(&p->model, l, "weight_c");
        scan.bias = p->weights + naive_find(&p->model, l, "bias");
        scan.mask_pad = p->mask_pad;
        scan.c0 = c0;
        scan.cT = cT;
        scan.h = h;
        scan.c = c;
        naive_scan_forward(&scan);
        for (b = 0; b < B; b++)
            for (i = 0; i < N; i++) loss += cT[b*N + i]*p->dstate[b*S + (size_t)l*N + i];
        free(x);
        x = h;
        if (f->layer_norm && f->normalize_after)
            naive_layernorm_forward(x, NULL, x, gain, shift, rows, N);
        free(a); free(z); free(o); free(kv); free(u); free(c); free(c0); free(cT);
    }
    for (i = 0; i < rows*N; i++) loss += x[i]*p->dh[i];
    free(x);
    return loss;
}

/* A stack with N inputs, N units and projections of P. */
static sru_config plain_config(size_t N, size_t P)
{
    sru_config f;
    memset(&f, 0, sizeof f);
    f.arch = SRU_ARCH_SRUPP;
    f.input_size = f.hidden_size = (int)N;
    f.projection_size = (int)P;
    return f;
}

static sru_config stack_config(int variant)
{
    sru_config f = plain_config(11, 6);
    f.highway_bias = -1;
    switch (variant) {
    case 0: break;
    case 1: f.num_heads = 3; f.causal = 1; break;
    case 2: f.bidirectional = 1; f.num_heads = 2; break;
    case 3: f.input_size = 7; f.layer_norm = 1; f.rescale = 1; f.window = 4; break;
    case 4: f.layer_norm = f.normalize_after = 1; f.no_attn_layer_norm = 1; break;
    case 5: f.num_layers = 4; f.attention_every_n_layers = 2; f.causal = 1; break;
    case 6: f.num_layers = 3; f.attention_last_n_layers = 1; f.input_size = 5; break;
    case 7: f.attention_last_n_layers = -1; break;
    case 8: f.input_size = 5; f.proj_input_to_hidden_first = 1; f.no_attn_layer_norm = 1; break;
    case 9: f.use_tanh = 1; f.scale_x = 1.5f; break;
    case 10: f.no_skip_term = f.v1 = 1; break;
    default: f.bidirectional = 1; f.layer_norm = 1; f.num_layers = 3; f.num_heads = 6; break;
    }
    return f;
}
enum { VARIANTS = 12 };

/* Compares the library's gradient along random directions with the slope of the naive loss, by
   central differences in double. It is of float32: 3e-5 of its length is about 250 roundings. */
static void check_slope(const char *what, stack *p, REAL *value, const float *gradient, size_t n,
                        int variant)
{
    REAL *old = naive_array(n), *d = naive_array(n), up, down, length = 0, along = 0, dot = 0;
    const REAL e = (REAL)1e-5;
    size_t i;
    memcpy(old, value, n*sizeof(REAL));
    for (i = 0; i < n; i++) {
        d[i] = (REAL)test_random();
        along += d[i]*d[i];
        length += (REAL)gradient[i]*(REAL)gradient[i];
    }
    length = (REAL)sqrt((double)length);
    along = (REAL)sqrt((double)along);
    for (i = 0; i < n; i++) {
        d[i] /= along;
        dot += d[i]*(REAL)gradient[i];
        value[i] = old[i] + e*d[i];
    }
    up = stack_loss(p);
    for (i = 0; i < n; i++) value[i] = old[i] - e*d[i];
    down = stack_loss(p);
    memcpy(value, old, n*sizeof(REAL));
    CHECK(fabs((double)((up - down)/(2*e) - dot)) < 3e-5*(1 + (double)length),
          "variant %d, %s: the slope is %.9g, the gradient says %.9g", variant, what,
          (double)((up - down)/(2*e)), (double)dot);
    free(old);
    free(d);
}

static void run_stack(int variant, size_t T, size_t M, int masks)
{
    stack p;
    sru_sizes n;
    sru_io io;
    sru_tensor t;
    char error[SRU_ERROR_SIZE] = "";
    sru_context c = context(1, error);
    const size_t B = 2;
    size_t need = 0;
    float *w, *g, *x, *dx, *h, *dh, *state, *dstate, *bias, *memory[SRU_MAX_LAYERS];
    float *dmemory[SRU_MAX_LAYERS];
    uint8_t *pad = random_mask(T*B, 5), *memory_pad = random_mask(M*B, 4);
    size_t i, b, I, N, S;
    int l, L;
    memset(&p, 0, sizeof p);
    memset(&io, 0, sizeof io);
    p.model.config = stack_config(variant);
    L = naive_layers(&p.model.config);
    I = (size_t)p.model.config.input_size;
    N = naive_width(&p.model.config);
    if (!CHECK(sru_size(&n, &c, &p.model, T + M, B) == SRU_OK, "%s", error)) return;
    S = (size_t)L*N;
    w = (float *)test_alloc(n.weights);
    g = (float *)test_alloc(n.weights);
    CHECK(sru_init(w, &p.model.config, 5) == SRU_OK, "sru_init failed");
    p.model.weights = w;
    for (i = 0; sru_get_tensor(&t, &p.model, (int)i); i++)
        if (strstr(t.name, "alpha")) t.data[0] = 0.6f;
        else if (strstr(t.name, "norm")) for (b = 0; b < t.shape[0]; b++)
            t.data[b] += 0.3f*(float)test_random();
    x = test_floats(T*B*I);
    dx = test_floats(T*B*I);
    h = test_floats(T*B*N);
    dh = test_floats(T*B*N);
    state = test_floats(B*n.state);
    dstate = test_floats(B*n.state);
    bias = test_floats(T*(M + T));
    test_fill(x, T*B*I, 2);
    test_fill(dh, T*B*N, 1);
    test_fill(bias, T*(M + T), 1);
    for (i = 0; i < T*(M + T); i++)
        if (test_bits() % 4 == 0) test_make_minus_infinity(bias + i);
    for (b = 0; b < B; b++) {
        test_fill(state + b*n.state, S, 1);
        test_fill(dstate + b*n.state, S, 1);
        for (i = S; i < n.state; i++) state[b*n.state + i] = 0.5f;  /* rings: left alone */
    }
    p.T = T;
    p.B = B;
    p.M = M;
    p.weights = naive_wide(w, n.weights/4);
    p.x = naive_wide(x, T*B*I);
    p.dh = naive_wide(dh, T*B*N);
    {
        REAL *s0 = naive_array(B*S), *ds = naive_array(B*S);
        for (b = 0; b < B; b++) for (i = 0; i < S; i++) {
            s0[b*S + i] = (REAL)state[b*n.state + i];
            ds[b*S + i] = (REAL)dstate[b*n.state + i];
        }
        p.state = s0;
        p.dstate = ds;
    }
    p.attn_mask = masks ? naive_wide(bias, T*(M + T)) : NULL;
    p.mask_pad = masks ? pad : NULL;
    p.memory_mask_pad = masks ? memory_pad : NULL;
    for (l = 0; l < L; l++) {
        const size_t m = M*B*naive_layer_input(&p.model.config, l);
        memory[l] = test_floats(m);
        dmemory[l] = test_floats(m);
        test_fill(memory[l], m, 2);
        test_fill(dmemory[l], m, 2);
        p.memory[l] = naive_wide(memory[l], m);
    }

    io.T = T;
    io.B = B;
    io.x = x;
    io.h = h;
    io.state = state;
    io.mask_pad = p.mask_pad;
    io.attn_mask = masks ? bias : NULL;
    if (M) {
        io.memory = (const float *const *)memory;
        io.dmemory = dmemory;
        io.memory_length = M;
        io.memory_mask_pad = p.memory_mask_pad;
    }
    io.tape = test_alloc(n.tape);
    c.work = test_alloc(n.train_work);
    c.work_size = n.train_work;
    memset(io.tape, 0xff, n.tape);          /* NaN, wherever nothing was written */
    memset(c.work, 0xff, n.train_work);
    io.dh = dh;
    io.dx = dx;
    io.dstate = dstate;
    io.grads = g;
    for (i = 0; i < n.weights/4; i++) g[i] = 0.5f;          /* to which gradients are added */
    CHECK(sru_forward(&c, &p.model, &io) == SRU_OK, "%s", error);
    {
        /* the loss itself first */
        REAL loss = 0, should = stack_loss(&p);
        for (i = 0; i < T*B*N; i++) loss += (REAL)h[i]*p.dh[i];
        for (b = 0; b < B; b++)
            for (i = 0; i < S; i++) loss += (REAL)state[b*n.state + i]*p.dstate[b*S + i];
        CHECK(fabs((double)(loss - should)) < 1e-4, "variant %d: the loss is %.9g, not %.9g",
              variant, (double)loss, (double)should);
    }
    memset(c.work, 0xff, n.train_work);
    CHECK(sru_backward(&c, &p.model, &io) == SRU_OK, "%s", error);
    for (i = 0; i < n.weights/4; i++) g[i] -= 0.5f;
    check_slope("x", &p, (REAL *)(uintptr_t)p.x, dx, T*B*I, variant);
    for (b = 0; b < B; b++)
        test_constant("a ring, after training", state + b*n.state + S, n.state - S, 0.5f);
    for (b = 0; b < B; b++)
        check_slope("state", &p, (REAL *)(uintptr_t)(p.state + b*S), dstate + b*n.state, S,
                    variant);
    for (l = 0; l < L && M; l++)
        check_slope("memory", &p, (REAL *)(uintptr_t)p.memory[l], dmemory[l],
                    M*B*naive_layer_input(&p.model.config, l), variant);
    for (i = 0; sru_get_tensor(&t, &p.model, (int)i); i++) {
        const size_t at = (size_t)(t.data - w), count = t.shape[0]*(t.shape[1] ? t.shape[1] : 1);
        if (p.model.config.v1 && strstr(t.name, "weight_c"))
            test_constant("the gradient of v with v1", g + at, count, 0);
        else
            check_slope(t.name, &p, (REAL *)(uintptr_t)(p.weights + at), g + at, count, variant);
    }
    c.measure = &need;
    CHECK(sru_backward(&c, &p.model, &io) == SRU_OK, "%s", error);
    c.measure = NULL;
    for (i = 1; i < 5; i++) {                               /* whatever the tape holds */
        c.work_size = (need - 1)/i;
        CHECK(sru_backward(&c, &p.model, &io) == SRU_ENOMEM, "variant %d: %lu bytes are enough for "
              "backward, which asks for %lu", variant, (unsigned long)c.work_size,
              (unsigned long)need);
    }
    for (l = 0; l < L; l++) {
        free(memory[l]);
        free(dmemory[l]);
        free((REAL *)(uintptr_t)p.memory[l]);
    }
    free(w); free(g); free(x); free(dx); free(h); free(dh); free(state); free(dstate); free(bias);
    free(pad); free(memory_pad); free(io.tape); free(c.work);
    free((REAL *)(uintptr_t)p.weights); free((REAL *)(uintptr_t)p.x);
    free((REAL *)(uintptr_t)p.dh); free((REAL *)(uintptr_t)p.state);
    free((REAL *)(uintptr_t)p.dstate); free((REAL *)(uintptr_t)p.attn_mask);
}

static void test_stacks(void)
{
    int variant;
    for (variant = 0; variant < VARIANTS; variant++) {
        run_stack(variant, 9, 0, 0);
        run_stack(variant, 9, 5, 0);
        run_stack(variant, 9, 3, 1);
        run_stack(variant, 0, 5, 0);        /* memory that no step sees */
    }
}

/* ---- streaming ------------------------------------------------------------------------------- */

/* Makes a model in the form `type`, and its sizes; free its weights when done. */
static void *make_model(sru_model *m, const sru_config *f, sru_type type, size_t T, size_t B,
                        sru_sizes *n)
{
    sru_model plain;
    void *weights, *packed;
    sru_tensor t;
    int i;
    memset(&plain, 0, sizeof plain);
    plain.config = *f;
    CHECK(sru_size(n, NULL, &plain, T, B) == SRU_OK, "sru_size failed");
    weights = test_alloc(n->weights);
    CHECK(sru_init((float *)weights, f, 3) == SRU_OK, "sru_init failed");
    plain.weights = weights;
    for (i = 0; sru_get_tensor(&t, &plain, i); i++)
        if (strstr(t.name, "alpha")) t.data[0] = 0.8f;
    *m = plain;
    if (type == SRU_PLAIN) return weights;
    m->type = type;
    CHECK(sru_size(n, NULL, m, T, B) == SRU_OK, "sru_size failed");
    packed = test_alloc(n->weights);
    CHECK(sru_pack(NULL, m, packed, &plain) == SRU_OK, "sru_pack failed");
    free(weights);
    return packed;
}

/* Runs all sequences, `chunk` steps in a call; sequence 1 starts anew at step `reset`. */
static void stream(const sru_model *m, const float *x, float *h, size_t T, size_t B, size_t S,
                   size_t chunk, size_t reset, const uint8_t *pad, int threads)
{
    const size_t I = (size_t)m->config.input_size, N = naive_width(&m->config);
    float *state = test_floats(B*S);
    const sru_context c = context(threads, NULL);
    size_t t, n;
    for (t = 0; t < T; t += n) {
        sru_io io;
        n = T - t < chunk ? T - t : chunk;
        if (t < reset && t + n > reset) n = reset - t;
        if (t == reset && B > 1) memset(state + S, 0, S*4);
        memset(&io, 0, sizeof io);
        io.T = n;
        io.B = B;
        io.x = x + t*B*I;
        io.h = h + t*B*N;
        io.state = state;
        io.mask_pad = pad ? pad + t*B : NULL;
        CHECK(sru_forward(&c, m, &io) == SRU_OK, "sru_forward failed");
    }
    free(state);
}

static void test_streaming(void)
{
    static const int windows[] = { 1, 7, 64, 65, 150 };
    static const size_t chunks[] = { 1, 5, 64, 100, 1000 };
    static const sru_type types[] = { SRU_F32, SRU_PLAIN, SRU_BF16, SRU_Q8 };
    const size_t T = 201, B = 3, I = 13, N = 17;
    float *x = test_floats(T*B*I), *whole = test_floats(T*B*N), *h = test_floats(T*B*N);
    float *x1 = test_floats(T*I), *h1 = test_floats(T*N);
    uint8_t *pad = random_mask(T*B, 6);
    size_t i, j, k, t, reset, alone;
    int threads;
    test_fill(x, T*B*I, 2);
    for (i = 0; i < sizeof windows/sizeof *windows; i++) {
        for (k = 0; k < sizeof types/sizeof *types; k++) {
            sru_config f;
            sru_model m;
            sru_sizes n;
            void *weights;
            int masked;
            f = plain_config(N, i % 2 ? 10 : 37);
            f.input_size = (int)I;
            f.num_heads = i % 2 ? 2 : 1;
            f.layer_norm = (int)(i % 2);
            f.window = windows[i];
            if (k > 1 && i % 2) continue;
            weights = make_model(&m, &f, types[k], T, B, &n);
            for (masked = test_brief(); masked < 2; masked++) {
                const uint8_t *p = masked ? pad : NULL;
                reset = masked ? 77 : T;
                stream(&m, x, whole, T, B, n.state, T, reset, p, 1);
                for (j = 0; j < sizeof chunks/sizeof *chunks; j++) {
                    if (k > 1 && chunks[j] != 1) continue;
                    stream(&m, x, h, T, B, n.state, chunks[j], reset, p, (int)(1 + j % 3));
                    CHECK(!memcmp(h, whole, T*B*N*4), "window %d, type %d, chunks of %d, %s: other "
                          "bits than the whole", windows[i], (int)types[k], (int)chunks[j],
                          masked ? "padded and reset" : "plain");
                }
                /* a sequence alone, without its padding */
                for (t = j = 0; t < T; t++) {
                    if (p && p[t*B + 2]) continue;
                    memcpy(x1 + j*I, x + (t*B + 2)*I, I*4);
                    j++;
                }
                alone = j;
                for (threads = 1; threads <= TEST_THREADS + 1; threads++) {
                    /* several for one head, too */
                    stream(&m, x1, h1, alone, 1, n.state, threads == 3 ? 1 : alone, alone, NULL,
                           threads);
                    for (t = j = 0; t < T; t++) {
                        if (p && p[t*B + 2]) continue;
                        if (memcmp(h1 + j*N, whole + (t*B + 2)*N, N*4)) break;
                        j++;
                    }
                    CHECK(t == T, "window %d, %d threads: step %d of a sequence alone has other "
                          "bits", windows[i], threads, (int)t);
                }
            }
            free(weights);
        }
    }
    free(x); free(whole); free(h); free(x1); free(h1); free(pad);
}

/* Without padding, the ring gives what training computes with masks, even if scratch memory, where
   it lies without a state, is full of NaN. Training wants no rings, so it needs no more scratch
   memory for a longer window. */
static void test_ring_and_tape(void)
{
    const size_t T = 150, B = 2, N = 17;
    float *x = test_floats(T*B*N), *h = test_floats(T*B*N), *tape_h = test_floats(T*B*N);
    sru_config f;
    sru_model m;
    sru_sizes n, longer;
    sru_io io;
    void *weights;
    double error;
    char message[SRU_ERROR_SIZE] = "";
    sru_context c = context(1, message);
    test_fill(x, T*B*N, 2);
    f = plain_config(N, 8);
    f.num_layers = 4;
    f.attention_every_n_layers = 2;     /* two have rings */
    f.window = 70;
    weights = make_model(&m, &f, SRU_PLAIN, T, B, &n);
    memset(&io, 0, sizeof io);
    io.T = T;
    io.B = B;
    io.x = x;
    io.h = h;
    CHECK(sru_forward(NULL, &m, &io) == SRU_OK, "sru_forward failed");
    io.h = tape_h;
    io.tape = test_alloc(n.tape);
    CHECK(sru_forward(NULL, &m, &io) == SRU_OK, "sru_forward failed");
    error = test_error(h, tape_h, T*B*N);
    CHECK(error == 0, "the ring differs from the tape by %g", error);
    c.work = test_alloc(n.work);
    c.work_size = n.work;
    memset(c.work, 0xff, n.work);
    free(io.tape);
    io.tape = NULL;
    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "%s", message);
    CHECK(!memcmp(h, tape_h, T*B*N*4), "with memory given, a ring gives other bits");
    f.window = 10000;
    m.config = f;
    CHECK(sru_size(&longer, NULL, &m, T, B) == SRU_OK, "sru_size failed");
    CHECK(longer.train_work <= n.train_work, "training with a window of 70 takes %lu bytes of "
          "scratch memory, and %lu with one of 10000", (unsigned long)n.train_work,
          (unsigned long)longer.train_work);
    free(c.work); free(weights); free(x); free(h); free(tape_h);
}

/* A padded step counts as one of the window in training, and in inference with attn_mask or memory,
   even if these hide nothing, and leaves rings alone, even if there is no memory in `memory`; rings
   do not count it. What such calls need is measured. */
static void test_padded_windows(void)
{
    enum { T = 40, B = 2, N = 17, M = 64 };
    float *x = test_floats(T*B*N), *h = test_floats(T*B*N), *tape_h = test_floats(T*B*N);
    float *memory = test_floats(M*B*N), *mask = test_floats(T*T), *dx = test_floats(T*B*N);
    float *grads[2], *state;
    const float *memories[2], *none[2] = { NULL, NULL };
    float *dmemories[2] = { NULL, NULL };
    uint8_t *pad = random_mask(T*B, 4), hidden[M*B];
    char error[SRU_ERROR_SIZE] = "";
    sru_context c = context(1, error);
    sru_config f = plain_config(N, 8);
    sru_model m;
    sru_sizes n;
    sru_io io;
    void *weights;
    size_t j;
    int i;
    test_fill(x, T*B*N, 2);
    test_fill(memory, M*B*N, 2);
    memset(hidden, 1, sizeof hidden);
    memories[0] = memories[1] = memory;
    f.window = 5;
    weights = make_model(&m, &f, SRU_PLAIN, T + M, B, &n);
    state = test_floats(B*n.state);
    memset(&io, 0, sizeof io);
    io.T = T;
    io.B = B;
    io.x = x;
    io.mask_pad = pad;
    io.h = tape_h;
    io.tape = test_alloc(n.tape);
    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "%s", error);
    for (i = 0; i < 4; i++) {
        sru_io call = io;
        size_t need = 0, more;
        double off;
        call.h = h;
        call.state = state;
        call.tape = NULL;
        if (i == 0) call.attn_mask = mask;
        if (i == 1) call.memory = memories, call.memory_length = M, call.memory_mask_pad = hidden;
        if (i == 2) call.memory = none;
        memset(h, 0, T*B*N*4);
        c.measure = &need;
        CHECK(sru_forward(&c, &m, &call) == SRU_OK, "%s", error);
        more = need + 1;
        c.measure = &more;
        CHECK(sru_forward(&c, &m, &call) == SRU_OK && more == need + 1, "%s", error);
        c.measure = NULL;
        test_constant("h, measured,", h, T*B*N, 0);
        c.work = test_alloc(need);
        c.work_size = need - 1;
        CHECK(sru_forward(&c, &m, &call) == SRU_ENOMEM, "%lu bytes are enough",
              (unsigned long)c.work_size);
        c.work_size = need;
        for (j = 0; j < B*n.state; j++) state[j] = j % n.state < 2*N || i == 3 ? 0 : 0.5f;
        CHECK(sru_forward(&c, &m, &call) == SRU_OK, "%s", error);
        off = test_error(h, tape_h, T*B*N);
        CHECK(i < 3 ? off < 1e-6 : off > 1e-3, "inference %d differs from training by %g", i, off);
        for (j = 0; j < B && i < 3; j++)
            test_constant("a ring that is not used", state + j*n.state + 2*N, n.state - 2*N, 0.5f);
        free(c.work);
        c.work = NULL;
    }
    /* that some gradients are not wanted changes no others */
    io.memory = memories;
    io.memory_length = M;
    io.dh = x;
    for (i = 0; i < 2; i++) {
        io.dx = h;
        io.h = tape_h;
        io.grads = grads[i] = (float *)test_alloc(n.weights);
        CHECK(sru_forward(&c, &m, &io) == SRU_OK, "%s", error);
        io.dmemory = i ? NULL : dmemories;
        dmemories[0] = test_floats(M*B*N);
        CHECK(sru_backward(&c, &m, &io) == SRU_OK, "%s", error);
        free(dmemories[0]);
        if (!i) memcpy(dx, h, T*B*N*4);
    }
    CHECK(!memcmp(dx, h, T*B*N*4) && !memcmp(grads[0], grads[1], n.weights),
          "other gradients without those of memory");
    dmemories[0] = dmemories[1] = memory;
    io.dmemory = dmemories;             /* the last that is written would be left */
    CHECK(sru_forward(&c, &m, &io) == SRU_EINVAL && strstr(error, "dmemory of layers 0 and 1"),
          "%s", error);
    io.dmemory = NULL;
    io.saved = dmemories;
    CHECK(sru_forward(&c, &m, &io) == SRU_EINVAL && strstr(error, "saved and memory"), "%s", error);
    free(x); free(h); free(tape_h); free(memory); free(mask); free(dx); free(pad); free(grads[0]);
    free(grads[1]); free(io.tape); free(weights); free(state);
}

/* Scratch memory for many sequences is enough for fewer: threads then share a ring, for which they
   need some of it. */
static void test_fewer_sequences(void)
{
    const size_t T = 64, D = 24;
    size_t B, fewer;
    int threads, heads;
    sru_config f = plain_config(D, 4);
    f.num_layers = 1;
    f.window = 3000;
    for (heads = 1; heads <= 2; heads++)
        for (B = 1; B <= 4; B++) {
            sru_model m;
            sru_sizes n;
            void *weights;
            f.num_heads = heads;
            weights = make_model(&m, &f, SRU_F32, T, B, &n);
            for (threads = 1; threads <= 5; threads += 2)
                for (fewer = 1; fewer <= B; fewer++) {
                    float *x = test_floats(T*B*D), *h = test_floats(T*B*D);
                    float *state = test_floats(B*n.state);
                    char error[SRU_ERROR_SIZE] = "";
                    sru_context c = context(threads, error);
                    sru_io io;
                    memset(&io, 0, sizeof io);
                    CHECK(sru_size(&n, &c, &m, T, B) == SRU_OK, "%s", error);
                    c.work = test_alloc(n.work);
                    c.work_size = n.work;
                    io.T = T;
                    io.B = fewer;
                    io.x = x;
                    io.h = h;
                    io.state = state;
                    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "%d heads, %lu of %lu sequences on "
                          "%d threads: %s", heads, (unsigned long)fewer, (unsigned long)B, threads,
                          error);
                    free(c.work);
                    free(state);
                    free(h);
                    free(x);
                }
            free(weights);
        }
}

/* A state may come from a damaged file: impossible counters of a ring must have the effect of 0. */
static void test_ring_counters(void)
{
    float wrong[] = { 0, -200, 2000, 1e30f, 0 };        /* the last becomes NaN */
    const size_t T = 3, D = 24;
    float *x = test_floats(T*D), *h = test_floats(T*D), *right = test_floats(T*D);
    char error[SRU_ERROR_SIZE] = "";
    sru_config f = plain_config(D, 4);
    sru_model m;
    sru_sizes n;
    void *weights;
    int threads, i;
    test_fill(x, T*D, 1);
    test_make_nan(&wrong[4]);
    f.num_layers = 1;
    f.window = 1000;
    weights = make_model(&m, &f, SRU_F32, T, 1, &n);
    for (threads = 1; threads <= 4; threads += 3)       /* four of them share a ring */
        for (i = 0; i < 25; i++) {
            float *state = test_floats(n.state);
            sru_context c = context(threads, error);
            sru_io io;
            memset(&io, 0, sizeof io);
            io.T = T;
            io.B = 1;
            io.x = x;
            io.h = i ? h : right;
            io.state = state;
            state[D] = wrong[i/5];
            state[D+1] = wrong[i%5];
            CHECK(sru_forward(&c, &m, &io) == SRU_OK, "%s", error);
            CHECK(!i || !memcmp(h, right, T*D*4), "a ring with the counters %g and %g counts",
                  (double)wrong[i/5], (double)wrong[i%5]);
            CHECK(state[D] == 3 && state[D+1] == 3, "a ring's counters are %g and %g after 3 steps",
                  (double)state[D], (double)state[D+1]);
            free(state);
        }
    free(weights); free(x); free(h); free(right);
}

/* Dropout of all kinds: it can be repeated, differs for another step, and has the gradient of the
   same masks, along a random direction. */
static void test_dropout(void)
{
    const size_t T = 20, B = 3, N = 16;
    float *x = test_floats(T*B*N), *h = test_floats(T*B*N), *h2 = test_floats(T*B*N);
    float *dx = test_floats(T*B*N), *dh = test_floats(T*B*N), *d = test_floats(T*B*N);
    float *x2 = test_floats(T*B*N);
    double up = 0, down = 0, dot = 0, length = 0;
    const double e = 4e-3;
    sru_config f;
    sru_model m;
    sru_sizes n;
    sru_context c;
    sru_io io;
    void *weights;
    size_t i;
    test_fill(x, T*B*N, 1);
    test_fill(dh, T*B*N, 1);
    test_fill(d, T*B*N, 1);
    f = plain_config(N, 8);
    f.causal = 1;
    f.dropout = 0.3f;
    f.attn_dropout = 0.4f;
    weights = make_model(&m, &f, SRU_PLAIN, T, B, &n);
    memset(&io, 0, sizeof io);
    c = context(1, NULL);
    io.T = T;
    io.B = B;
    io.x = x;
    io.h = h;
    io.dh = dh;
    io.dx = dx;
    io.grads = (float *)test_alloc(n.weights);
    io.tape = test_alloc(n.tape);
    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "sru_forward failed");
    CHECK(sru_backward(&c, &m, &io) == SRU_OK, "sru_backward failed");
    c.threads = 3;
    io.h = h2;
    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "sru_forward failed");
    CHECK(!memcmp(h, h2, T*B*N*4), "3 threads drop out something else");
    /* In float32, so e must be large: rounding leaves 1e-6/e, the third derivative e*e. */
    for (i = 0; i < T*B*N; i++) {
        dot += (double)dx[i]*(double)d[i];
        length += (double)dx[i]*(double)dx[i];
        x2[i] = x[i] + (float)e*d[i];
    }
    io.x = x2;
    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "sru_forward failed");
    for (i = 0; i < T*B*N; i++) up += (double)h2[i]*(double)dh[i];
    for (i = 0; i < T*B*N; i++) x2[i] = x[i] - (float)e*d[i];
    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "sru_forward failed");
    for (i = 0; i < T*B*N; i++) down += (double)h2[i]*(double)dh[i];
    CHECK(fabs((up - down)/(2*e) - dot) < 0.01*(1 + sqrt(length)),
          "the slope is %g, the gradient says %g", (up - down)/(2*e), dot);
    c.step = 1;
    io.x = x;
    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "sru_forward failed");
    CHECK(memcmp(h, h2, T*B*N*4), "another step drops out the same");
    free(io.grads); free(io.tape); free(weights);
    free(x); free(h); free(h2); free(dx); free(dh); free(d); free(x2);
}

/* Operators that record from which numbers dropout is drawn, how often a place is left out, and for
   how many places. */
static struct { uint32_t id; float p; size_t n; } ids[64];
static int id_count;

static void note(uint32_t id, float p, size_t n)
{
    ids[id_count].id = id;
    ids[id_count].p = p;
    ids[id_count].n = n;
    if (id_count < 63) id_count++;
}

static sru_status noting_dropout(const sru_context *c, float *y, const float *x, const float *mask,
                                 float p, uint32_t id, float beta, size_t T, size_t n)
{
    if (!mask && p > 0) note(id, p, n);
    return sru_cpu()->dropout(c, y, x, mask, p, id, beta, T, n);
}

static sru_status noting_attention(const sru_context *c, const sru_attention *s)
{
    note(s->id, s->dropout, 0);
    return sru_cpu()->attention_forward(c, s);
}

static sru_status noting_attention_backward(const sru_context *c, const sru_attention *s)
{
    note(s->id, s->dropout, 0);
    return sru_cpu()->attention_backward(c, s);
}

/* No two dropouts of a network leave out the same places. In backward, each draws what it drew
   before, except for the masks of units, which are kept. */
static void test_ids(void)
{
    enum { T = 2, B = 3, N = 8, P = 4, L = 3 };
    static const struct { float p; int times; size_t n; } should[] = {
        { 0.25f, 2*L - 1, (L - 1)*B*N + L*T*B*P },      /* units, what is projected */
        { 0.125f, L, L*B*N }, { 0.5f, L - 1, (L - 1)*T*B*N }, { 0.375f, L, 0 }
    };
    float x[T*B*N] = { 0 }, h[T*B*N], dh[T*B*N] = { 0 }, dx[T*B*N];
    sru_backend noting = *sru_cpu();
    uint32_t drawn[64];
    void *weights;
    sru_config f;
    sru_model m;
    sru_sizes n;
    sru_context c;
    sru_io io;
    int i, k, count, same = 0, known = 0;
    noting.dropout = noting_dropout;
    noting.attention_forward = noting_attention;
    noting.attention_backward = noting_attention_backward;
    f = plain_config(N, P);
    f.num_layers = L;
    f.dropout = should[0].p;
    f.rnn_dropout = should[1].p;
    f.layer_dropout = should[2].p;
    f.attn_dropout = should[3].p;
    weights = make_model(&m, &f, SRU_PLAIN, T, B, &n);
    memset(&io, 0, sizeof io);
    c = context(0, NULL);
    c.op = &noting;
    c.work = test_alloc(c.work_size = n.train_work);
    io.T = T;
    io.B = B;
    io.x = x;
    io.h = h;
    io.dh = dh;
    io.dx = dx;
    io.tape = test_alloc(n.tape);
    id_count = 0;
    CHECK(sru_forward(&c, &m, &io) == SRU_OK, "sru_forward failed");
    /* inputs, projections and attention of all layers, units and outputs of all but the last */
    CHECK(id_count == 3*L + 2*(L - 1), "%d dropouts", id_count);
    count = id_count;
    for (i = 0; i < count; i++) drawn[i] = ids[i].id;
    for (k = 0; k < 4; k++) {
        size_t places = 0;
        int times = 0;
        for (i = 0; i < count; i++)
            if (ids[i].p == should[k].p) places += ids[i].n, times++;
        CHECK(times == should[k].times && places == should[k].n, "%d times with probability %g, "
              "for %d places", times, (double)should[k].p, (int)places);
    }
    for (i = 0; i < count; i++) {
        for (k = 0; k < i; k++) same += drawn[i] == drawn[k];
        CHECK(drawn[i] >> 31, "a network draws from %lu, an id of the caller's",
              (unsigned long)drawn[i]);
    }
    CHECK(!same, "%d dropouts draw the same numbers as others", same);
    id_count = 0;
    CHECK(sru_backward(&c, &m, &io) == SRU_OK, "sru_backward failed");
    CHECK(id_count == 3*L + L - 1, "%d dropouts in backward", id_count);
    for (i = 0; i < id_count; i++)
        for (k = 0; k < count; k++) known += ids[i].id == drawn[k];
    CHECK(known == id_count, "%d of %d dropouts draw again", known, id_count);
    free(c.work); free(io.tape); free(weights);
}

/* Scratch memory at B = 1, P = 256 grows linearly with T, and not at all if there is a window. */
static void test_memory(void)
{
    const size_t T = sizeof T > 4 ? 1024 : 256;         /* as 32 bits of address allow */
    size_t work[2][3], i;
    int w;
    for (w = 0; w < 2; w++) {
        for (i = 0; i < 3; i++) {
            sru_model m;
            sru_sizes n;
            memset(&m, 0, sizeof m);
            m.type = SRU_F32;
            m.config.arch = SRU_ARCH_SRUPP;
            m.config.input_size = m.config.hidden_size = 1024;
            m.config.projection_size = 256;
            m.config.causal = 1;
            m.config.window = w ? 256 : 0;
            CHECK(sru_size(&n, NULL, &m, T << 2*i, 1) == SRU_OK, "sru_size failed");
            work[w][i] = n.work;
            printf("T %5d, %s: %8.2f MB of scratch memory, %.2f MB of state\n",
                   (int)(T << 2*i), w ? "window 256" : "no window ", (double)n.work/1e6,
                   (double)n.state*4e-6);
        }
    }
    CHECK((double)work[0][1] < 4.1*(double)work[0][0]
          && (double)work[0][2] < 4.1*(double)work[0][1],
          "scratch memory grows from %.0f to %.0f to %.0f", (double)work[0][0], (double)work[0][1],
          (double)work[0][2]);
    CHECK(work[1][0] == work[1][2], "with a window it grows from %.0f to %.0f",
          (double)work[1][0], (double)work[1][2]);
}

static void test_errors(void)
{
    char error[SRU_ERROR_SIZE] = "";
    sru_context c = context(0, error);
    sru_model m;
    sru_sizes n;
    memset(&m, 0, sizeof m);
    m.config.arch = SRU_ARCH_SRUPP;
    m.config.input_size = m.config.hidden_size = 8;
    CHECK(sru_size(&n, &c, &m, 1, 1) == SRU_EINVAL && strstr(error, "projection_size"), "%s",
          error);
    m.config.projection_size = 6;
    m.config.num_heads = 4;
    CHECK(sru_size(&n, &c, &m, 1, 1) == SRU_EINVAL && strstr(error, "num_heads"), "%s", error);
    m.config.attention_last_n_layers = -1;      /* no layer has heads */
    CHECK(sru_size(&n, &c, &m, 1, 1) == SRU_OK, "no attention: %s", error);
    m.config.attention_last_n_layers = 0;
    m.config.num_heads = -1;
    CHECK(sru_size(&n, &c, &m, 1, 1) == SRU_EINVAL && strstr(error, "num_heads"), "%s", error);
    m.config.num_heads = 2;
    m.config.attn_dropout = 1;
    CHECK(sru_size(&n, &c, &m, 1, 1) == SRU_EINVAL && strstr(error, "attn_dropout"), "%s", error);
    m.config.attn_dropout = 0;
    CHECK(sru_size(&n, &c, &m, 0, 0) == SRU_OK, "%s", error);
    CHECK(sru_size(&n, &c, &m, 0, (size_t)-1/2) == SRU_EINVAL && strstr(error, "too large"), "%s",
          error);
    m.config.window = (1 << 23) + 1;
    CHECK(sru_size(&n, &c, &m, 1, 1) == SRU_EINVAL && strstr(error, "window"), "%s", error);
    m.config.window--;
    m.config.projection_size = 512;     /* a ring of 32 GB */
    CHECK(sru_size(&n, &c, &m, 1, 1) == (sizeof(size_t) > 4 ? SRU_OK : SRU_EINVAL), "%s", error);
    m.config.window = 0;
    m.config.projection_size = 6;
    {                                   /* a mask (T,M+T), and no memory in layer 1 */
        const float *memory[2] = { NULL, NULL };
        float weights[2048], x[8] = {0}, h[8], mask[3] = {0};
        sru_io io;
        memset(&io, 0, sizeof io);
        memset(weights, 0, sizeof weights);
        m.weights = weights;
        memory[0] = x;
        io.T = io.B = 1;
        io.x = x;
        io.h = h;
        io.memory = memory;
        io.memory_length = 1;
        CHECK(sru_size(&n, &c, &m, 1, 1) == SRU_OK && n.weights <= sizeof weights, "%s", error);
        CHECK(sru_forward(&c, &m, &io) == SRU_OK, "%s", error);
        io.attn_mask = mask;
        CHECK(sru_forward(&c, &m, &io) == SRU_EINVAL && strstr(error, "layer 1"), "%s", error);
        memory[1] = x;
        CHECK(sru_forward(&c, &m, &io) == SRU_OK, "%s", error);
        m.weights = NULL;
    }
    m.config.attention_last_n_layers = -1;      /* no layer attends */
    CHECK(sru_size(&n, &c, &m, 20000, 1) == SRU_OK, "%s", error);
    {
        const size_t work = n.work;
        CHECK(sru_size(&n, &c, &m, 50000, 1) == SRU_OK && n.work == work, "%lu bytes, %lu for "
              "longer", (unsigned long)work, (unsigned long)n.work);
    }
    {
        sru_attention s;
        enum { RING = 2 + (64 + 64)*(8 + 16) };     /* of a window of 4 */
        float q[8] = {0}, kv[16] = {0}, o[8], mask[1] = {0};
        static float ring[RING];
        int i;
        memset(&s, 0, sizeof s);
        s.T = s.B = 1;
        s.P = 8;
        s.H = 3;
        s.q = q;
        s.kv = kv;
        s.o = o;
        CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_EINVAL && strstr(error, "multiple"), "%s",
              error);
        s.H = 1;
        for (i = 0; i < 3; i++) {
            const int bits = (int)sizeof(size_t)*8;
            sru_attention large = s;
            if (i == 0) large.B = (size_t)1 << (bits - 6);
            if (i == 1) large.T = (size_t)1 << bits/2, large.attn_mask = mask;
            if (i == 2) large.P = (size_t)1 << (bits - 27), large.window = 1 << 23;
            CHECK(sru_cpu()->attention_forward(&c, &large) == SRU_EINVAL
                  && strstr(error, "too large"), "%d: %s", i, error);
            error[0] = 0;
        }
        s.window = 4;
        s.ring = ring;
        s.ld_ring = (size_t)1 << (sizeof(size_t)*8 - 2);
        CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_EINVAL && strstr(error, "too large"),
              "%s", error);
        s.ring = NULL;
        s.window = (1 << 23) + 1;
        CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_EINVAL && strstr(error, "too large"),
              "%s", error);
        s.ring = ring;
        for (i = 0; i < 6; i++) {
            s.ld_ring = i ? RING : RING - 1;
            s.window = i == 1 ? 0 : 4;
            s.M = i == 2;
            s.attn_mask = i == 3 ? mask : NULL;
            s.dropout = i == 4 ? 0.5f : 0;
            CHECK(sru_cpu()->attention_forward(&c, &s) == (i < 5 ? SRU_EINVAL : SRU_OK)
                  && strstr(error, i ? "ld_ring" : "ld_ring of at least 3074"), "%d: %s", i,
                  error);
        }
        s.a = s.stats = s.dq = o;
        s.dout = q;
        s.dkv = kv;
        CHECK(sru_cpu()->attention_backward(&c, &s) == SRU_EINVAL && strstr(error, "ring"), "%s",
              error);
        s.ring = NULL;
        for (i = 0; i < 5; i++) {
            sru_attention lacks = s;
            if (i == 0) lacks.a = NULL;
            if (i == 1) lacks.stats = NULL;
            if (i == 2) lacks.dout = NULL;
            if (i == 3) lacks.dq = NULL;
            if (i == 4) lacks.dkv = NULL;
            error[0] = 0;
            CHECK(sru_cpu()->attention_backward(&c, &lacks) == SRU_EINVAL && strstr(error, "NULL"),
                  "%d: %s", i, error);
        }
        s.dropout = 1;
        CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_EINVAL && strstr(error, "dropout"), "%s",
              error);
        s.dropout = 0;
        s.q = NULL;
        CHECK(sru_cpu()->attention_forward(&c, &s) == SRU_EINVAL && strstr(error, "NULL"), "%s",
              error);
        CHECK(sru_cpu()->attention_forward(&c, NULL) == SRU_EINVAL && strstr(error, "NULL"), "%s",
              error);
    }
}

/* Each variant comes back from a file as it was saved, and so do metadata that are not arguments of
   the reference. */
static void test_files(void)
{
    char folder[512], path[520], error[SRU_ERROR_SIZE] = "";
    int variant;
    test_folder(folder);
    sprintf(path, "%s/saved", folder);
    for (variant = 0; variant < VARIANTS; variant++) {
        sru_model saved, *m;
        sru_sizes size;
        float *weights;
        memset(&saved, 0, sizeof saved);
        saved.config = stack_config(variant);
        if (!saved.config.num_layers) saved.config.num_layers = 2;
        saved.config.dropout = 0.25f;
        saved.config.attn_dropout = 0.125f;
        saved.config.layer_dropout = 0.0625f;
        CHECK(sru_size(&size, NULL, &saved, 1, 1) == SRU_OK, "variant %d", variant);
        weights = (float *)test_alloc(size.weights);
        CHECK(sru_init(weights, &saved.config, 1) == SRU_OK, "variant %d", variant);
        saved.weights = weights;
        CHECK(sru_save(path, &saved, "", NULL, 0, error) == SRU_OK, "%s", error);
        m = sru_load(path, SRU_PLAIN, error);
        if (CHECK(m != NULL, "variant %d: %s", variant, error)) {
            CHECK(!memcmp(&m->config, &saved.config, sizeof m->config),
                  "variant %d: another config is loaded than was saved", variant);
            CHECK(!memcmp(m->weights, weights, size.weights),
                  "variant %d: other weights are loaded than were saved", variant);
        }
        free(m);
        free(weights);
    }
    remove(path);
    CHECK(!rmdir(folder), "the folder is not empty");
}

static void run_all(void)
{
    test_attention();
    test_attention_prefixes();
    test_attention_rings();
    test_attention_cross();
    test_attention_kept();
    test_attention_counters();
    test_attention_empty();
    test_attention_masked();
    test_attention_hidden();
    test_attention_saturated();
    test_stacks();
    test_streaming();
    test_ring_and_tape();
    test_padded_windows();
    test_fewer_sequences();
    test_ring_counters();
    test_dropout();
    test_ids();
}

/* Compared with what 3.0-dev's reset_parameters() does: Glorot and Bengio 2010 for all matrices. */
static void test_init(void)
{
    sru_config f;
    sru_model m;
    sru_sizes n;
    sru_tensor t;
    float *w;
    size_t k, wrong = 0, at = 0;
    int i, matrices = 0;
    memset(&f, 0, sizeof f);
    memset(&m, 0, sizeof m);
    f.input_size = 40;
    f.hidden_size = 64;
    f.num_layers = 3;
    f.arch = SRU_ARCH_SRUPP;
    f.projection_size = 32;
    f.attention_every_n_layers = 2;         /* the second of them */
    f.proj_input_to_hidden_first = f.layer_norm = 1;
    f.highway_bias = -2;
    f.dropout = 0.25f;
    m.config = f;
    CHECK(sru_size(&n, NULL, &m, 1, 1) == SRU_OK, "sru_size failed");
    m.weights = w = (float *)test_alloc(n.weights);
    memset(w, 0xff, n.weights);
    CHECK(sru_init(w, &f, 5) == SRU_OK, "sru_init failed");
    for (i = 0; sru_get_tensor(&t, &m, i); i++) {
        const int attends = strstr(t.name, "rnn_lst.1.") != NULL, second = t.shape[1] > 0;
        const size_t count = t.shape[0]*(second ? t.shape[1] : 1), D = (size_t)f.hidden_size;
        CHECK((t.data - w) % 16 == 0, "%s is not aligned as the weights are", t.name);
        CHECK((size_t)(t.data - w) == at, "%s does not follow the tensor before it", t.name);
        at += strstr(t.name, "alpha") ? 16 : count;         /* zeros follow alpha */
        if (second) {
            double bound = sqrt(6/(double)(t.shape[0] + t.shape[1]));
            if (strstr(t.name, attends ? "linear3" : "linear2")) bound *= sqrt(0.75);
            test_uniform(t.name, t.data, count, bound);
            matrices++;
        } else if (strstr(t.name, "weight_c")) {
            test_uniform(t.name, t.data, count, 1);
        } else if (strstr(t.name, "layer_norm.weight")) {
            test_constant(t.name, t.data, count, 1);
        } else if (strstr(t.name, "alpha") || strstr(t.name, "layer_norm.bias")) {
            test_constant(t.name, t.data, count, 0);
        } else if (CHECK(strstr(t.name, ".bias") && count == 2*D, "%s is new here", t.name)) {
            test_constant(t.name, t.data, D, 0);
            test_constant(t.name, t.data + D, D, -2);
        }
    }
    CHECK(matrices == 8, "there are %d matrices", matrices);
    CHECK(at == n.weights/4, "behind the last tensor lies something else");
    for (k = 0; k < n.weights/4; k++) wrong += !test_finite(&w[k]);
    CHECK(!wrong, "%lu numbers are not set", (unsigned long)wrong);
    naive_check_drawn("SRU++", &m);
    free(w);
}

int main(int argc, char **argv)
{
    test_begin(argc, argv, "Tests SRU++: attention against a naive one, gradients of whole stacks "
                           "against finite differences, streaming bit for bit, memory.");
    test_init();
    test_memory();
    test_errors();
    test_files();
    test_each_isa(isa, run_all);
    return test_end();
}
