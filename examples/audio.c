/* A noise gate in an audio callback: one step for each frame, static memory, nothing allocated.
   It finds a melody in noise. Its weights are set by hand, which also shows what a unit does:

       c, the internal state, follows the level of a band of frequencies;
       f, the forget gate, closes while the band is loud: c rises at once and falls slowly;
       r, the reset gate, opens once c is above the noise: h = r tanh(c) is the gain.

   A trained network would be read by sru_load_bytes(), into static memory, too.

       cc -O2 audio.c -o audio -lm && ./audio */
#define SRU_IMPLEMENTATION
#define SRU_NO_BACKWARD                     /* nothing is trained: compiles sooner */
#define SRU_NO_STDIO
#define SRU_MALLOC(n) NULL                  /* proof that nothing is allocated */
#define SRU_FREE(p)   ((void)(p))
#include "../sru.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RATE = 16000, N = 128, FRAMES = 4 * RATE / N };      /* 8 ms a frame, one band a unit */

static float plain[3*N*N + 4*N], weights[4*N*N], state[N], work[32768];
static float level[N], gain[N], basis[N][N];
static sru_model gate = {
    .config = { .input_size = N, .hidden_size = N, .num_layers = 1,
                .no_skip_term = 1, .use_tanh = 1 },
    .type = SRU_F32
};
static char error[SRU_ERROR_SIZE] = "an array above has another size";
static const sru_context ctx = { .threads = 1, .work = work, .work_size = sizeof work,
                                 .error = error };
static const sru_io io = { .T = 1, .B = 1, .x = level, .h = gain, .state = state };

static int open_gate(void)                  /* once, before the sound starts */
{
    sru_model by_hand = { .config = gate.config, .weights = plain };
    sru_tensor w, v, bias;                  /* (3,N,N), (2,N), (2,N) */
    sru_sizes need, n;
    if (sru_size(&need, &ctx, &by_hand, 1, 1) || need.weights != sizeof plain) return -1;
    if (sru_size(&n, &ctx, &gate, 1, 1) || n.weights > sizeof weights) return -1;
    if (n.state * 4 > sizeof state || n.work > sizeof work) return -1;

    sru_get_tensor(&w,    &by_hand, 0);
    sru_get_tensor(&v,    &by_hand, 1);
    sru_get_tensor(&bias, &by_hand, 2);
    for (int i = 0; i < N; i++) {
        w.data[i*N + i] = 1;                /* candidate = the level, and some of its neighbours' */
        if (i > 0)     w.data[i*N + i-1] = .3f;
        if (i < N - 1) w.data[i*N + i+1] = .3f;
        w.data[(N + i)*N + i] = -1;         /* forget = sigmoid(3 - level) */
        bias.data[i] = 3;
        v.data[N + i] = 4;                  /* reset = sigmoid(4 (c - 1.5)) */
        bias.data[N + i] = -4 * 1.5f;
    }
    return sru_pack(&ctx, &gate, weights, &by_hand);
}

static void callback(float *frame)          /* for each frame: to bands, through the gate, back */
{
    float band[N];
    for (int k = 0; k < N; k++) {
        band[k] = 0;
        for (int i = 0; i < N; i++) band[k] += basis[k][i] * frame[i];
        level[k] = fabsf(band[k]);          /* about 0.5 in noise */
    }
    sru_forward(&ctx, &gate, &io);          /* cannot fail: open_gate() checked the sizes */
    for (int i = 0; i < N; i++) {
        frame[i] = 0;
        for (int k = 0; k < N; k++) frame[i] += basis[k][i] * band[k] * gain[k];
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--help"))
        return puts("audio    reduces the noise in a melody with a gate"), 0;
    if (argc > 1) return fputs("audio takes no argument: see --help\n", stderr), 2;
    const double pi = 3.14159265358979, melody[] = { 523, 659, 784, 1047 };
    double noise = 0, left = 0, signal = 0, phase = 0;

    for (int k = 0; k < N; k++)             /* DCT-IV: orthogonal, and its own inverse */
        for (int i = 0; i < N; i++)
            basis[k][i] = (float)(sqrt(2.0 / N) * cos(pi / N * (k + .5) * (i + .5)));
    if (open_gate()) return fprintf(stderr, "the gate does not open: %s\n", error), 1;

    for (int f = 0; f < FRAMES; f++) {
        float clean[N], frame[N];
        const int note = f / 31, silent = f % 31 > 23;
        for (int i = 0; i < N; i++) {
            phase += 2 * pi * melody[note % 4] / RATE;
            clean[i] = silent ? 0 : (float)sin(phase);
            frame[i] = clean[i] + (float)(rand() % 2001 - 1000) / 1000;
            noise  += pow(frame[i] - clean[i], 2);
            signal += pow(clean[i], 2);
        }
        callback(frame);
        for (int i = 0; i < N; i++) left += pow(frame[i] - clean[i], 2);
    }
    printf("A melody in noise, %d frames of %d samples: ", FRAMES, N);
    printf("signal to noise %.1f dB before, %.1f dB after\n",
           10 * log10(signal / noise), 10 * log10(signal / left));
    return fflush(stdout) ? perror("stdout"), 1 : !(left < noise / 5);
}
