/* A service: one const model, and several threads, each of which runs a batch of clients step by
   step. Clients come and go independently. At the end, each answer is compared with the one that
   the client gets when it is served alone.

       cc server.c -o server -lpthread && ./server rnn.safetensors */
#define SRU_IMPLEMENTATION
#define SRU_NO_BACKWARD         /* nothing is trained: compiles sooner */
#include "../sru.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, B = 16, CLIENTS = 1000 };
static sru_model *rnn;
static size_t I, N;                                     /* widths of input and output */
static float *answer;                                   /* (CLIENTS,N) the last output of each */
static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;

static void *allocate(size_t bytes)                     /* zeros */
{
    void *memory = calloc(1, bytes);
    if (!memory) fputs("no memory\n", stderr), exit(1);
    return memory;
}

static int next_client(void)                            /* -1: no more */
{
    static int n;
    int client;
    pthread_mutex_lock(&door);
    client = n < CLIENTS ? n++ : -1;
    pthread_mutex_unlock(&door);
    return client;
}

static int frames(int client) { return 5 + client*7 % 50; }

static void receive(float *x, int client, int t)
{
    for (size_t i = 0; i < I; i++) x[i] = (float)((client*31 + t*17 + (int)i*7) % 21 - 10) / 10;
}

static void *serve(void *unused)
{
    char error[SRU_ERROR_SIZE];
    sru_context ctx = { .threads = 1, .error = error };
    sru_sizes n;
    if (sru_size(&n, &ctx, rnn, 1, B)) return fprintf(stderr, "%s\n", error), NULL;
    ctx.work = allocate(ctx.work_size = n.work);

    float *x = allocate(B*I * 4), *h = allocate(B*N * 4), *state = allocate(B*n.state * 4);
    int client[B], t[B] = {0}, busy;
    uint8_t absent[B];
    sru_io io = { .T = 1, .B = B, .x = x, .h = h, .state = state, .mask_pad = absent };
    do {
        busy = 0;
        for (size_t b = 0; b < B; b++) {
            if (t[b] == 0) {                            /* the seat is free */
                client[b] = next_client();
                memset(state + b*n.state, 0, n.state * 4);
            }
            absent[b] = client[b] < 0;
            if (!absent[b]) receive(x + b*I, client[b], t[b]++), busy = 1;
        }
        if (sru_forward(&ctx, rnn, &io)) return fprintf(stderr, "%s\n", error), NULL;
        for (size_t b = 0; b < B; b++)
            if (!absent[b] && t[b] == frames(client[b])) {
                memcpy(answer + (size_t)client[b]*N, h + b*N, N * 4);
                t[b] = 0;
            }
    } while (busy);
    free(x), free(h), free(state), free(ctx.work);
    return unused;
}

static int same_alone(int client)                       /* all of its frames in one call */
{
    const int T = frames(client);
    float *x = allocate((size_t)T*I * 4), *h = allocate((size_t)T*N * 4);
    sru_io io = { .T = (size_t)T, .B = 1, .x = x, .h = h };
    for (int t = 0; t < T; t++) receive(x + (size_t)t*I, client, t);
    const int same = !sru_forward(NULL, rnn, &io) &&
                     !memcmp(h + (size_t)(T - 1)*N, answer + (size_t)client*N, N * 4);
    free(x), free(h);
    return same;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "examples/rnn.safetensors";
    if (!strcmp(path, "--help")) return puts("server [MODEL.safetensors]"), 0;
    if (argc > 2) return fputs("server takes one model: see --help\n", stderr), 2;

    char error[SRU_ERROR_SIZE];
    rnn = sru_load(path, SRU_BF16, error);
    if (!rnn) return fprintf(stderr, "%s\n", error), 1;
    if (rnn->config.bidirectional || (rnn->config.arch == SRU_ARCH_SRUPP && !rnn->config.window))
        return fprintf(stderr, "%s reads backwards, too, or attends without a window, and cannot "
                       "go step by step\n", path), 1;
    I = (size_t)rnn->config.input_size;
    N = (size_t)rnn->config.hidden_size;
    answer = allocate(CLIENTS*N * 4);

    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, serve, NULL))
            return fprintf(stderr, "a thread cannot be started\n"), 1;
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);

    int same = 0;
    for (int i = 0; i < CLIENTS; i++) same += same_alone(i);
    printf("%d clients served by %d threads, up to %d at a time; "
           "%d got the bits that they get alone\n", CLIENTS, THREADS, THREADS * B, same);
    free(rnn), free(answer);
    return fflush(stdout) ? perror("stdout"), 1 : same != CLIENTS;
}
