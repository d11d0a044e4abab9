/* The oracle: every operator, and whole networks of them, written straight from the equations.
   Nothing here is fast or clever. It computes in REAL, which is double unless defined otherwise, so
   that finite differences can confirm each backward function to many digits. What the library
   computes in float32 is then compared with it.

   Conventions are those of sru.h: gradients of parameters are added to what is there; those of
   activations overwrite it or, where beta is 1, are added. A gradient may be NULL: not wanted. */
#ifndef NAIVE_H
#define NAIVE_H

#include "test.h"
#include "../sru.h"

#ifndef REAL
#define REAL double
#endif

static inline REAL *naive_array(size_t n)
{
    return (REAL *)test_alloc(n*sizeof(REAL));
}

/* n zeros if x is NULL. */
static inline REAL *naive_wide(const float *x, size_t n)
{
    REAL *y = naive_array(n);
    size_t i;
    for (i = 0; x && i < n; i++) y[i] = (REAL)x[i];
    return y;
}

static inline REAL naive_sigmoid(REAL x)
{
    return (REAL)(1/(1 + exp((double)-x)));
}

/* ---- linear: y = x w' + b ------------------------------------------------------------------- */

static inline void naive_linear_forward(REAL *y, const REAL *x, const REAL *w, const REAL *b,
                                        size_t rows, size_t n, size_t k)
{
    size_t r, i, j;
    for (r = 0; r < rows; r++) {
        for (i = 0; i < n; i++) {
            REAL sum = b ? b[i] : 0;
            for (j = 0; j < k; j++) sum += x[r*k + j]*w[i*k + j];
            y[r*n + i] = sum;
        }
    }
}

static inline void naive_linear_backward(REAL *dx, REAL *dw, REAL *db, const REAL *dy,
                                         const REAL *x, const REAL *w, REAL beta,
                                         size_t rows, size_t n, size_t k)
{
    size_t r, i, j;
    for (r = 0; r < rows; r++) {
        for (j = 0; dx && j < k; j++) {
            REAL sum = 0;
            for (i = 0; i < n; i++) sum += dy[r*n + i]*w[i*k + j];
            dx[r*k + j] = (beta != 0 ? beta*dx[r*k + j] : 0) + sum;
        }
        for (i = 0; i < n; i++) {
            for (j = 0; dw && j < k; j++) dw[i*k + j] += dy[r*n + i]*x[r*k + j];
            if (db) db[i] += dy[r*n + i];
        }
    }
}

/* ---- scan: the recurrence of a layer, with the product before it if w is given --------------- */

/* The fields of sru_scan. u and c are always needed here; dvt, dw, dv, dbias, da may be NULL. */
typedef struct naive_scan {
    size_t         T, B, N, I;
    int            K, bidirectional, use_tanh;
    REAL           scale_x;
    const REAL    *a, *w;
    REAL          *u;
    const REAL    *x, *v, *bias, *vt, *mask_c;
    const uint8_t *mask_pad;
    const REAL    *c0;
    REAL          *cT;
    REAL          *h, *c;
    const REAL    *dh;
    REAL          *dc, *du, *dx, *da, *dvt, *dw, *dv, *dbias;
} naive_scan;

/* Gates of a unit: SSRU has no reset gate. */
static inline size_t naive_gates(const naive_scan *p)
{
    return p->K == 2 ? 1 : 2;
}

/* g(c), and its derivative. */
static inline REAL naive_g(const naive_scan *p, REAL c)
{
    return p->K == 2 ? (c > 0 ? c : 0) : p->use_tanh ? (REAL)tanh((double)c) : c;
}

static inline REAL naive_dg(const naive_scan *p, REAL c)
{
    return p->K == 2 ? (REAL)(c > 0) : p->use_tanh ? 1 - naive_g(p, c)*naive_g(p, c) : 1;
}

/* What one unit sees in one step. */
typedef struct naive_step {
    size_t i;               /* index of (t,b,n) */
    size_t u, vt;           /* index of (t,b,0,n) in u and in vt */
    REAL   c, f, r, s, m;   /* c before, gates, skip term, mask_c */
    int    pad;
} naive_step;

/* The factor of c in gate i, which is 0 (forget) or 1 (reset); and the value of that gate. */
static inline REAL naive_v(const naive_scan *p, const naive_step *s, size_t i, size_t n)
{
    return (p->v ? p->v[i*p->N + n] : 0) + (p->vt ? p->vt[s->vt + i*p->N] : 0);
}

static inline REAL naive_gate(const naive_scan *p, const naive_step *s, size_t i, size_t n)
{
    return naive_sigmoid(p->u[s->u + (i + 1)*p->N] + naive_v(p, s, i, n)*s->c
                         + (p->bias ? p->bias[i*p->N + n] : 0));
}

static inline naive_step naive_scan_step(const naive_scan *p, size_t t, size_t b, size_t n, REAL c)
{
    naive_step s;
    size_t tb = t*p->B + b, N = p->N;
    s.i = tb*N + n;
    s.u = tb*(size_t)p->K*N + n;
    s.vt = tb*naive_gates(p)*N + n;
    s.c = c;
    s.f = naive_gate(p, &s, 0, n);
    s.r = naive_gates(p) > 1 ? naive_gate(p, &s, 1, n) : 1;
    s.s = p->K == 4 ? p->u[s.u + 3*N] : p->x ? p->scale_x*p->x[s.i] : 0;
    s.m = p->mask_c ? p->mask_c[b*N + n] : 1;
    s.pad = p->mask_pad ? p->mask_pad[tb] : 0;
    return s;
}

/* The time of a unit's step number i: if bidirectional, the second half of units goes backward. */
static inline size_t naive_scan_time(const naive_scan *p, size_t n, size_t i)
{
    return p->bidirectional && n >= p->N/2 ? p->T - 1 - i : i;
}

static inline void naive_scan_forward(const naive_scan *p)
{
    size_t b, n, i;
    if (p->w) naive_linear_forward(p->u, p->a, p->w, NULL, p->T*p->B, (size_t)p->K*p->N, p->I);
    for (b = 0; b < p->B; b++) {
        for (n = 0; n < p->N; n++) {
            REAL c = p->c0 ? p->c0[b*p->N + n] : 0;
            for (i = 0; i < p->T; i++) {
                naive_step s = naive_scan_step(p, naive_scan_time(p, n, i), b, n, c);
                if (!s.pad) c = s.f*c + (1 - s.f)*p->u[s.u];
                p->c[s.i] = c;
                p->h[s.i] = s.pad ? 0 : p->K == 2 ? s.m*naive_g(p, c) + s.s
                          : s.r*s.m*(naive_g(p, c) - s.s) + s.s;
            }
            if (p->cT) p->cT[b*p->N + n] = c;
        }
    }
}

static inline void naive_scan_backward(const naive_scan *p)
{
    size_t b, n, i, N = p->N;
    for (b = 0; b < p->B; b++) {
        for (n = 0; n < N; n++) {
            REAL dc = p->dc ? p->dc[b*N + n] : 0;
            for (i = p->T; i-- > 0;) {
                size_t t = naive_scan_time(p, n, i);
                REAL before = i ? p->c[(naive_scan_time(p, n, i - 1)*p->B + b)*N + n]
                            : p->c0 ? p->c0[b*N + n] : 0;
                naive_step s = naive_scan_step(p, t, b, n, before);
                REAL u0 = p->u[s.u], dh = p->dh[s.i], ds, dr, df, dz[2], next;
                size_t k;
                if (s.pad) {
                    for (k = 0; k < (size_t)p->K; k++) p->du[s.u + k*N] = 0;
                    if (p->dx && p->x && p->K < 4) p->dx[s.i] = 0;
                    for (k = 0; k < naive_gates(p) && p->dvt; k++) p->dvt[s.vt + k*N] = 0;
                    continue;
                }
                /* forward: h = r*m*(g(c) - s) + s; K = 2: m*g(c) + s */
                dr = dh*s.m*(naive_g(p, p->c[s.i]) - s.s);
                ds = p->K == 2 ? dh : dh*(1 - s.r*s.m);
                dc += dh*s.r*s.m*naive_dg(p, p->c[s.i]);
                /* forward: c = f*before + (1 - f)*u0 */
                df = dc*(before - u0);
                p->du[s.u] = dc*(1 - s.f);
                /* forward: f, r = sigmoid(z), z = u + (v + vt)*before + bias */
                dz[0] = df*s.f*(1 - s.f);
                dz[1] = dr*s.r*(1 - s.r);
                next = dc*s.f;
                for (k = 0; k < naive_gates(p); k++) {
                    next += dz[k]*naive_v(p, &s, k, n);
                    p->du[s.u + (k + 1)*N] = dz[k];
                    if (p->dvt) p->dvt[s.vt + k*N] = dz[k]*before;
                    if (p->dv) p->dv[k*N + n] += dz[k]*before;
                    if (p->dbias) p->dbias[k*N + n] += dz[k];
                }
                dc = next;
                /* forward: s = u3, or scale_x*x */
                if (p->K == 4) p->du[s.u + 3*N] = ds;
                else if (p->x && p->dx) p->dx[s.i] = p->scale_x*ds;
            }
            if (p->dc) p->dc[b*N + n] = dc;
        }
    }
    if (p->w) {
        naive_linear_backward(p->da, p->dw, NULL, p->du, p->a, p->w, 0, p->T*p->B,
                              (size_t)p->K*N, p->I);
    }
}

/* ---- layer norm: y = (x - mean)*rstd*gain + bias, rstd = 1/sqrt(variance + 1e-5) ------------- */

static inline void naive_layernorm_forward(REAL *y, REAL *stats, const REAL *x, const REAL *gain,
                                           const REAL *bias, size_t rows, size_t n)
{
    size_t r, i;
    for (r = 0; r < rows; r++) {
        REAL mean = 0, var = 0, rstd;
        for (i = 0; i < n; i++) mean += x[r*n + i]/(REAL)n;
        for (i = 0; i < n; i++) var += (x[r*n + i] - mean)*(x[r*n + i] - mean)/(REAL)n;
        rstd = (REAL)(1/sqrt((double)var + 1e-5));
        for (i = 0; i < n; i++) y[r*n + i] = (x[r*n + i] - mean)*rstd*gain[i] + bias[i];
        if (stats) stats[r*2] = mean, stats[r*2 + 1] = rstd;
    }
}

static inline void naive_layernorm_backward(REAL *dx, REAL *dgain, REAL *dbias, const REAL *dy,
                                            const REAL *x, const REAL *gain, const REAL *stats,
                                            REAL beta, size_t rows, size_t n)
{
    size_t r, i;
    for (r = 0; r < rows; r++) {
        REAL mean = stats[r*2], rstd = stats[r*2 + 1], sum = 0, dot = 0;
        for (i = 0; i < n; i++) {
            REAL z = (x[r*n + i] - mean)*rstd, dz = dy[r*n + i]*gain[i];
            if (dgain) dgain[i] += dy[r*n + i]*z;
            if (dbias) dbias[i] += dy[r*n + i];
            sum += dz/(REAL)n;
            dot += dz*z/(REAL)n;
        }
        /* the mean and the variance depend on every x of the row */
        for (i = 0; dx && i < n; i++) {
            REAL z = (x[r*n + i] - mean)*rstd, dz = dy[r*n + i]*gain[i];
            dx[r*n + i] = (beta != 0 ? beta*dx[r*n + i] : 0) + rstd*(dz - sum - z*dot);
        }
    }
}

/* ---- embedding, loss, norm, update ----------------------------------------------------------- */

static inline void naive_embedding_forward(REAL *y, const int32_t *tokens, const REAL *table,
                                           size_t rows, size_t n, size_t size)
{
    size_t r, i;
    for (r = 0; r < rows; r++) {
        int known = tokens[r] >= 0 && (size_t)tokens[r] < size;
        for (i = 0; i < n; i++) y[r*n + i] = known ? table[(size_t)tokens[r]*n + i] : 0;
    }
}

static inline void naive_embedding_backward(REAL *dtable, const REAL *dy, const int32_t *tokens,
                                            size_t rows, size_t n, size_t size)
{
    size_t r, i;
    for (r = 0; r < rows; r++) {
        if (tokens[r] < 0 || (size_t)tokens[r] >= size) continue;
        for (i = 0; i < n; i++) dtable[(size_t)tokens[r]*n + i] += dy[r*n + i];
    }
}

static inline REAL naive_softmax_loss(REAL *dy, const REAL *y, const int32_t *targets, REAL scale,
                                      size_t rows, size_t n)
{
    REAL loss = 0;
    size_t r, i;
    for (r = 0; r < rows; r++) {
        const REAL *z = y + r*n;
        REAL max = n ? z[0] : 0, sum = 0;
        for (i = 0; i < n; i++) max = z[i] > max ? z[i] : max;
        for (i = 0; i < n; i++) sum += (REAL)exp((double)(z[i] - max));
        if (targets[r] >= 0) loss -= z[targets[r]] - max - (REAL)log((double)sum);
        for (i = 0; dy && i < n; i++) {
            REAL p = (REAL)exp((double)(z[i] - max))/sum;
            REAL hit = (size_t)targets[r] == i ? 1 : 0;
            dy[r*n + i] = targets[r] < 0 ? 0 : scale*(p - hit);
        }
    }
    return loss;
}

static inline REAL naive_norm(const REAL *g, size_t n)
{
    REAL sum = 0;
    size_t i;
    for (i = 0; i < n; i++) sum += g[i]*g[i];
    return (REAL)sqrt((double)sum);
}

/* Loshchilov and Hutter 2019, algorithm 2; the decay is scaled by the learning rate, as PyTorch
   does it. */
static inline void naive_adamw(REAL *p, REAL *m, REAL *v, REAL *g, REAL scale, REAL lr, REAL beta1,
                               REAL beta2, REAL eps, REAL decay, uint64_t t, size_t n)
{
    double fix1 = 1 - pow((double)beta1, (double)t), fix2 = 1 - pow((double)beta2, (double)t);
    size_t i;
    for (i = 0; i < n; i++) {
        REAL d = scale*g[i];
        m[i] = beta1*m[i] + (1 - beta1)*d;
        v[i] = beta2*v[i] + (1 - beta2)*d*d;
        p[i] -= lr*((REAL)((double)m[i]/fix1)/((REAL)sqrt((double)v[i]/fix2) + eps) + decay*p[i]);
        g[i] = 0;
    }
}

/* ---- networks -------------------------------------------------------------------------------- */

/* What a layer keeps between forward and backward. */
typedef struct naive_layer {
    size_t I, P;                    /* width of the input; of the projection, or 0 */
    int    K;
    REAL  *x, *z, *stats, *a, *p;   /* input; normalised, its stats; after dropout; projected */
    REAL  *u, *c, *y;               /* of the scan; y is its output */
    REAL  *c0, *mask_c;             /* (B,N) */
    REAL  *h;                       /* y, perhaps normalised, after dropout */
} naive_layer;

/* The fields of sru_io, with weights and gradients in REAL, laid out as SRU_PLAIN weights are.
   Masks are applied unless they are NULL: nothing is random here. */
typedef struct naive_net {
    const sru_model *model;             /* its config, and where its tensors lie */
    size_t         T, B;
    const REAL    *weights, *x;
    REAL          *h, *state;           /* state (B,S) in and out; NULL: zeros */
    const uint8_t *mask_pad;
    const REAL    *dropout_mask, *rnn_dropout_mask, *layer_dropout_mask;
    const REAL    *dh;
    REAL          *dx, *dstate, *grads;
    naive_layer    layer[SRU_MAX_LAYERS];
} naive_net;

/* Where a layer's tensor begins whose name, after the layer's prefix, is `end`; -1: there is none.
   Layer -1: a tensor that belongs to no layer. */
static inline ptrdiff_t naive_find(const sru_model *model, int layer, const char *end)
{
    char prefix[32];
    sru_tensor t;
    int i;
    size_t length;
    sprintf(prefix, "rnn_lst.%d.", layer);
    length = layer < 0 ? 0 : strlen(prefix);
    for (i = 0; sru_get_tensor(&t, model, i); i++) {
        if (!strncmp(t.name, prefix, length) && !strcmp(t.name + length, end)) {
            return t.data - (const float *)model->weights;
        }
    }
    return -1;
}

/* Checks that no two tensors of a new network begin with the same numbers, up to a scale. */
static inline void naive_check_drawn(const char *what, const sru_model *model)
{
    uint64_t seen[16*SRU_MAX_LAYERS];
    int i, k, count = 0, same = 0;
    sru_tensor t;
    for (i = 0; sru_get_tensor(&t, model, i); i++) {
        uint64_t signs = 0;
        if (t.shape[0]*(t.shape[1] ? t.shape[1] : 1) < 64) continue;
        for (k = 0; k < 64; k++) signs = signs << 1 | (t.data[k] < 0);
        if (!signs) continue;                   /* constants */
        for (k = 0; k < count; k++) same += seen[k] == signs;
        seen[count++] = signs;
    }
    CHECK(count > 1 && !same, "%s: of %d tensors %d are alike", what, count, same);
}

static inline const REAL *naive_weight(const naive_net *net, int layer, const char *end)
{
    ptrdiff_t at = naive_find(net->model, layer, end);
    return at < 0 ? NULL : net->weights + at;
}

static inline REAL *naive_grad(const naive_net *net, int layer, const char *end)
{
    ptrdiff_t at = naive_find(net->model, layer, end);
    return at < 0 || !net->grads ? NULL : net->grads + at;
}

static inline int naive_layers(const sru_config *c)
{
    return c->num_layers ? c->num_layers : 2;
}

static inline size_t naive_width(const sru_config *c)
{
    return (size_t)c->hidden_size*(c->bidirectional ? 2 : 1);
}

/* Whether a product turns the input into N columns before the first layer. */
static inline int naive_input_first(const sru_config *c)
{
    return c->proj_input_to_hidden_first && (size_t)c->input_size != naive_width(c);
}

static inline size_t naive_layer_input(const sru_config *c, int layer)
{
    return layer || naive_input_first(c) ? naive_width(c) : (size_t)c->input_size;
}

/* 2.x leaves out a projection that would not make the layer narrower. */
static inline size_t naive_projection(const sru_config *c, int layer)
{
    size_t I = naive_layer_input(c, layer), N = naive_width(c);
    size_t P = (size_t)(c->projection_sizes[layer] ? c->projection_sizes[layer]
                                                   : c->projection_size);
    return c->arch == SRU_ARCH_SRU && (P >= I || P >= N) ? 0 : P;
}

static inline int naive_matrices(const sru_config *c, int layer)
{
    return !c->no_skip_term && naive_layer_input(c, layer) != naive_width(c) ? 4 : 3;
}

static inline REAL naive_scale_x(const sru_config *c)
{
    if (c->scale_x > 0) return (REAL)c->scale_x;
    return c->rescale && !c->no_skip_term
         ? (REAL)sqrt(1 + 2*exp((double)c->highway_bias)) : 1;
}

static inline const char *naive_product(const naive_net *net, int layer, int which)
{
    int projected = net->layer[layer].P > 0;
    if (net->model->config.arch == SRU_ARCH_SRU) return which ? "weight" : "weight_proj";
    if (!projected) return "transform_module.weight";
    return which ? "transform_module.1.weight" : "transform_module.0.weight";
}

/* Fills in the scan of a layer; naive_net_backward() then fills in its gradients. */
static inline naive_scan naive_net_scan(const naive_net *net, int l)
{
    const sru_config *config = &net->model->config;
    const naive_layer *q = &net->layer[l];
    naive_scan s;
    memset(&s, 0, sizeof s);
    s.T = net->T;
    s.B = net->B;
    s.N = naive_width(config);
    s.I = q->P ? q->P : q->I;
    s.K = q->K;
    s.bidirectional = config->bidirectional;
    s.use_tanh = config->use_tanh;
    s.scale_x = naive_scale_x(config);
    s.a = q->P ? q->p : q->a;
    s.w = naive_weight(net, l, naive_product(net, l, 1));
    s.u = q->u;
    s.x = config->no_skip_term ? NULL : q->x;
    s.v = config->v1 ? NULL : naive_weight(net, l, "weight_c");
    s.bias = naive_weight(net, l, "bias");
    s.mask_c = q->mask_c;
    s.mask_pad = net->mask_pad;
    s.c0 = q->c0;
    s.h = q->y;
    s.c = q->c;
    return s;
}

static inline void naive_net_forward(naive_net *net)
{
    const sru_config *config = &net->model->config;
    int L = naive_layers(config), l;
    size_t T = net->T, B = net->B, N = naive_width(config), rows = T*B, i, b;
    for (l = 0; l < L; l++) {
        naive_layer *q = &net->layer[l];
        naive_scan scan;
        size_t I = q->I = naive_layer_input(config, l);
        q->P = naive_projection(config, l);
        q->K = naive_matrices(config, l);
        q->x = naive_array(rows*I);
        q->z = naive_array(rows*I);
        q->stats = naive_array(rows*2);
        q->a = naive_array(rows*I);
        q->p = naive_array(rows*q->P);
        q->u = naive_array(rows*(size_t)q->K*N);
        q->c = naive_array(rows*N);
        q->y = naive_array(rows*N);
        q->h = naive_array(rows*N);
        q->c0 = naive_array(B*N);
        q->mask_c = naive_array(B*N);

        if (l) {
            memcpy(q->x, net->layer[l - 1].h, rows*I*sizeof(REAL));
        } else if (naive_input_first(config)) {
            naive_linear_forward(q->x, net->x, naive_weight(net, -1, "input_to_hidden.weight"),
                                 NULL, rows, N, (size_t)config->input_size);
        } else {
            memcpy(q->x, net->x, rows*I*sizeof(REAL));
        }
        if (config->layer_norm && !config->normalize_after) {
            naive_layernorm_forward(q->z, q->stats, q->x, naive_weight(net, l, "layer_norm.weight"),
                                    naive_weight(net, l, "layer_norm.bias"), rows, I);
        } else {
            memcpy(q->z, q->x, rows*I*sizeof(REAL));
        }
        for (i = 0; i < rows*I; i++) {
            size_t first = B*naive_layer_input(config, 0), at = l ? first + (size_t)(l - 1)*B*N : 0;
            q->a[i] = q->z[i]*(net->rnn_dropout_mask ? net->rnn_dropout_mask[at + i%(B*I)] : 1);
        }
        if (q->P) {
            naive_linear_forward(q->p, q->a, naive_weight(net, l, naive_product(net, l, 0)), NULL,
                                 rows, q->P, I);
        }
        for (b = 0; b < B; b++) {
            for (i = 0; i < N; i++) {
                size_t at = ((size_t)l*B + b)*N + i;
                if (net->state) q->c0[b*N + i] = net->state[(b*(size_t)L + (size_t)l)*N + i];
                q->mask_c[b*N + i] = net->dropout_mask ? net->dropout_mask[at] : 1;
            }
        }
        scan = naive_net_scan(net, l);
        scan.cT = naive_array(B*N);
        naive_scan_forward(&scan);
        for (b = 0; net->state && b < B; b++) {
            memcpy(net->state + (b*(size_t)L + (size_t)l)*N, scan.cT + b*N, N*sizeof(REAL));
        }
        free(scan.cT);
        if (config->layer_norm && config->normalize_after) {
            naive_layernorm_forward(q->h, q->stats, q->y, naive_weight(net, l, "layer_norm.weight"),
                                    naive_weight(net, l, "layer_norm.bias"), rows, N);
        } else {
            memcpy(q->h, q->y, rows*N*sizeof(REAL));
        }
        for (i = 0; net->layer_dropout_mask && l < L - 1 && i < rows*N; i++) {
            q->h[i] *= net->layer_dropout_mask[(size_t)l*rows*N + i];
        }
    }
    memcpy(net->h, net->layer[L - 1].h, rows*N*sizeof(REAL));
}

static inline void naive_net_backward(naive_net *net)
{
    const sru_config *config = &net->model->config;
    int L = naive_layers(config), l;
    size_t T = net->T, B = net->B, N = naive_width(config), rows = T*B, i, b;
    REAL *dh = naive_array(rows*N);     /* of a layer's output */
    memcpy(dh, net->dh, rows*N*sizeof(REAL));
    for (l = L - 1; l >= 0; l--) {
        naive_layer *q = &net->layer[l];
        size_t I = q->I;
        REAL *dy = naive_array(rows*N), *dc = naive_array(B*N), *da = naive_array(rows*I);
        REAL *dp = naive_array(rows*q->P), *dx = naive_array(rows*I);
        naive_scan scan = naive_net_scan(net, l);
        for (i = 0; net->layer_dropout_mask && l < L - 1 && i < rows*N; i++) {
            dh[i] *= net->layer_dropout_mask[(size_t)l*rows*N + i];
        }
        if (config->layer_norm && config->normalize_after) {
            naive_layernorm_backward(dy, naive_grad(net, l, "layer_norm.weight"),
                                     naive_grad(net, l, "layer_norm.bias"), dh, q->y,
                                     naive_weight(net, l, "layer_norm.weight"), q->stats, 0, rows,
                                     N);
        } else {
            memcpy(dy, dh, rows*N*sizeof(REAL));
        }
        for (b = 0; net->dstate && b < B; b++) {
            memcpy(dc + b*N, net->dstate + (b*(size_t)L + (size_t)l)*N, N*sizeof(REAL));
        }
        scan.dh = dy;
        scan.dc = dc;
        scan.du = naive_array(rows*(size_t)q->K*N);
        scan.dx = dx;                   /* stays 0 without a skip term, or with one in u */
        scan.da = q->P ? dp : da;
        scan.dw = naive_grad(net, l, naive_product(net, l, 1));
        scan.dv = config->v1 ? NULL : naive_grad(net, l, "weight_c");
        scan.dbias = naive_grad(net, l, "bias");
        naive_scan_backward(&scan);
        free(scan.du);
        for (b = 0; net->dstate && b < B; b++) {
            memcpy(net->dstate + (b*(size_t)L + (size_t)l)*N, dc + b*N, N*sizeof(REAL));
        }
        if (q->P) {
            const char *name = naive_product(net, l, 0);
            naive_linear_backward(da, naive_grad(net, l, name), NULL, dp, q->a,
                                  naive_weight(net, l, name), 0, rows, q->P, I);
        }
        for (i = 0; i < rows*I; i++) {
            size_t first = B*naive_layer_input(config, 0), at = l ? first + (size_t)(l - 1)*B*N : 0;
            da[i] *= net->rnn_dropout_mask ? net->rnn_dropout_mask[at + i%(B*I)] : 1;
        }
        if (config->layer_norm && !config->normalize_after) {
            naive_layernorm_backward(dx, naive_grad(net, l, "layer_norm.weight"),
                                     naive_grad(net, l, "layer_norm.bias"), da, q->x,
                                     naive_weight(net, l, "layer_norm.weight"), q->stats, 1, rows,
                                     I);
        } else {
            for (i = 0; i < rows*I; i++) dx[i] += da[i];
        }
        free(dh);
        dh = dx;
        free(dy);
        free(dc);
        free(da);
        free(dp);
    }
    if (naive_input_first(config)) {
        const char *name = "input_to_hidden.weight";
        naive_linear_backward(net->dx, naive_grad(net, -1, name), NULL, dh, net->x,
                              naive_weight(net, -1, name), 0, rows, N, (size_t)config->input_size);
    } else if (net->dx) {
        memcpy(net->dx, dh, rows*(size_t)config->input_size*sizeof(REAL));
    }
    free(dh);
}

/* Releases what forward has kept for backward. */
static inline void naive_net_free(naive_net *net)
{
    int l;
    for (l = 0; l < SRU_MAX_LAYERS; l++) {
        naive_layer *q = &net->layer[l];
        free(q->x), free(q->z), free(q->stats), free(q->a), free(q->p);
        free(q->u), free(q->c), free(q->y), free(q->c0), free(q->mask_c), free(q->h);
        memset(q, 0, sizeof *q);
    }
}

/* ---- finite differences ---------------------------------------------------------------------- */

/* Numbers that a loss depends on, and its gradient there. */
typedef struct naive_variable {
    const char *name;
    REAL       *value;
    const REAL *gradient;
    size_t      n;
} naive_variable;

/* Confirms a gradient along random directions: (loss(v + e d) - loss(v - e d))/2e = gradient.d.
   d has length 1. With e = 1e-5 the third derivative leaves an error of e*e/6 = 2e-11 times itself;
   rounding a loss of up to 100 leaves one of 100*1e-16/1e-5 = 1e-9. Together they are well below
   1e-8 times the gradient's length, if that is at least 1. */
static inline void naive_check_gradient(const char *what, REAL (*loss)(void *), void *arg,
                                        const naive_variable *v, int count)
{
    const REAL e = (REAL)1e-5;
    int i, k;
    for (i = 0; i < count; i++) {
        size_t n = v[i].n, j;
        REAL *old = naive_array(n), *d = naive_array(n);
        if (n) memcpy(old, v[i].value, n*sizeof(REAL));
        for (k = 0; k < 2 && n; k++) {
            REAL up, down, dot = 0, error, length;
            for (j = 0; j < n; j++) d[j] = (REAL)test_random();
            length = naive_norm(d, n);
            for (j = 0; j < n; j++) d[j] /= length;
            for (j = 0; j < n; j++) dot += d[j]*v[i].gradient[j];
            length = naive_norm(v[i].gradient, n);
            for (j = 0; j < n; j++) v[i].value[j] = old[j] + e*d[j];
            up = loss(arg);
            for (j = 0; j < n; j++) v[i].value[j] = old[j] - e*d[j];
            down = loss(arg);
            memcpy(v[i].value, old, n*sizeof(REAL));
            error = (REAL)fabs((double)((up - down)/(2*e) - dot));
            CHECK(error <= (REAL)1e-8*(1 + length),
                  "%s: d/d%s is %.10g, the gradient says %.10g", what, v[i].name,
                  (double)((up - down)/(2*e)), (double)dot);
        }
        free(old);
        free(d);
    }
}

#endif
