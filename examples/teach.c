/* One SRU layer by its operators: the product and the recurrence, forward and backward. The
   recurrence of one unit is written out beside it, and derivatives of each kind are compared with
   how the loss changes when one number changes a little.

       cc teach.c -o teach -lm && ./teach */
#define SRU_IMPLEMENTATION
#include "../sru.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = 5, B = 2, N = 3, K = 3 };
static float x[T*B*N], w[K*N*N], v[2*N], bias[2*N], u[T*B*K*N], c[T*B*N], h[T*B*N];
static float dx[T*B*N], dw[K*N*N], dv[2*N], dbias[2*N], du[T*B*K*N], dh[T*B*N];

static const sru_scan layer = {
    .T = T, .B = B, .N = N, .K = K, .u = u, .x = x, .v = v, .bias = bias, .h = h, .c = c,
    .du = du, .dx = dx, .dv = dv, .dbias = dbias, .dh = dh
};

static double loss(void)                    /* the sum of h^2/2 over all outputs */
{
    double sum = 0;
    sru_cpu()->linear_forward(NULL, u, x, w, SRU_PLAIN, NULL, T*B, K*N, N);     /* u = x w' */
    sru_cpu()->scan_forward(NULL, &layer);                                      /* c, h of u, x */
    for (int i = 0; i < T*B*N; i++) sum += 0.5 * h[i] * h[i];
    return sum;
}

static double sigmoid(double z) { return 1 / (1 + exp(-z)); }

static int write_out(int b, int n)          /* unit n of sequence b, step by step */
{
    double c0 = 0, off = 0;                 /* the state before the first step is 0 */
    for (int t = 0; t < T; t++) {
        const int at = (t*B + b)*N + n;
        const float *u0 = u + (t*B + b)*K*N + n, *u1 = u0 + N, *u2 = u1 + N;
        const double f = sigmoid(*u1 + v[n]*c0 + bias[n]);              /* how much is kept */
        const double r = sigmoid(*u2 + v[N + n]*c0 + bias[N + n]);      /* how much is shown */
        c0 = f*c0 + (1 - f)* *u0;
        const double y = r*c0 + (1 - r)*x[at];
        printf("t = %d    f %.4f  r %.4f  c %7.4f  h %7.4f    by the operator %7.4f\n", t, f, r, c0,
               y, h[at]);
        off = fmax(off, fabs(y - h[at]));
    }
    return off < 1e-5;
}

static void randomise(float *p, int n)      /* between -1 and 1 */
{
    while (n--) *p++ = (float)(rand() % 2001) / 1000 - 1;
}

static int check(const char *name, float *p, float derivative)
{
    const float p0 = *p, step = 1e-2f;
    double up, down, slope;
    *p = p0 + step, up   = loss();
    *p = p0 - step, down = loss();
    *p = p0;
    slope = (up - down) / (2 * step);
    printf("%-8s %9.5f   by differences %9.5f\n", name, derivative, slope);
    return slope - derivative < 1e-3 && derivative - slope < 1e-3;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--help"))
        return puts("teach    compares derivatives with finite differences"), 0;
    if (argc > 1) return fputs("teach takes no argument: see --help\n", stderr), 2;
    randomise(x, T*B*N), randomise(w, K*N*N), randomise(v, 2*N), randomise(bias, 2*N);

    const double before = loss();
    int agree = write_out(1, 2);
    printf("loss     %9.5f\n", before);
    for (int i = 0; i < T*B*N; i++) dh[i] = h[i];                   /* d loss / d h = h */
    sru_cpu()->scan_backward(NULL, &layer);                         /* du, dv, dbias; dx of skip */
    sru_cpu()->linear_backward(NULL, dx, dw, NULL, du, x, w, 1, T*B, K*N, N);   /* dx += du w */

    agree &= check("dx[4]",    &x[4],    dx[4]);
    agree &= check("dw[4]",    &w[4],    dw[4]);
    agree &= check("dv[1]",    &v[1],    dv[1]);
    agree &= check("dv[5]",    &v[5],    dv[5]);
    agree &= check("dbias[0]", &bias[0], dbias[0]);
    agree &= check("dbias[3]", &bias[3], dbias[3]);
    puts(agree ? "they agree" : "they differ");
    return fflush(stdout) ? perror("stdout"), 1 : !agree;
}
