/* What the machine can do at most, with vectors as wide as the compiler's flags allow:

       cc -O2 -fopenmp -ffp-contract=fast -mavx2 -mfma bench/peak.c -o build/peak
       build/peak flops 1 0.1           multiplications and additions in registers, in 10^9 a second
       build/peak tile 1 0.1            the same in the inner loop of a matrix product, all of whose
                                        operands are in the first-level cache
       build/peak copy 1 0.1 BYTES      from one array to another, 10^9 bytes read and written
       build/peak read 1 0.1 BYTES

   on 1 thread for 0.1 seconds; BYTES are those of all threads. Prints the median of repetitions of
   about 1 ms, as other times are medians: the clock rises now and then. */
#define _POSIX_C_SOURCE 200112L         /* clock_gettime */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
enum { WIDTH = 16, ROWS = 8, COLS = 3 };    /* floats of a vector; a tile's rows, vectors in one */
#elif defined(__AVX__)
enum { WIDTH = 8, ROWS = 6, COLS = 2 };
#else
enum { WIDTH = 4, ROWS = 6, COLS = 2 };
#endif
typedef float vector __attribute__((vector_size(WIDTH*sizeof(float)), aligned(WIDTH*4)));

enum { CHAINS = 12, ROUNDS = 10000 };   /* 8 are in flight where two of latency 4 start at once */
static volatile float given = 0.5f, taken;      /* so that nothing is known, nothing in vain */

static void multiply_and_add(void)
{
    vector c[CHAINS], a = {0}, b = {0};
    int i, n;
    a += given;
    b += given;
    for (i = 0; i < CHAINS; i++) c[i] = a*given;
    for (n = 0; n < ROUNDS; n++) {
#pragma GCC unroll 12
        for (i = 0; i < CHAINS; i++) c[i] = c[i]*a + b;
    }
    for (i = 1; i < CHAINS; i++) c[0] += c[i];
    taken = c[0][0];
}

enum { DEPTH = 128, AGAIN = 32 };       /* of the tile's product, 28 KB, which is taken again */
static float row_values[DEPTH*ROWS];
static vector columns[DEPTH*COLS];

static void multiply_tile(void)
{
    vector c[ROWS][COLS], b[COLS];
    int i, j, n;
#pragma GCC unroll 8
    for (i = 0; i < ROWS; i++) {
#pragma GCC unroll 8
        for (j = 0; j < COLS; j++) c[i][j] = columns[0]*given;
    }
    for (n = 0; n < AGAIN; n++) {
        const float *a = row_values;
        const vector *from = columns;
        int k;
        for (k = 0; k < DEPTH; k++, a += ROWS, from += COLS) {
#pragma GCC unroll 8
            for (j = 0; j < COLS; j++) b[j] = from[j];
#pragma GCC unroll 8
            for (i = 0; i < ROWS; i++) {
#pragma GCC unroll 8
                for (j = 0; j < COLS; j++) c[i][j] = a[i]*b[j] + c[i][j];
            }
        }
    }
#pragma GCC unroll 8
    for (i = 0; i < ROWS; i++) {
#pragma GCC unroll 8
        for (j = 0; j < COLS; j++) if (i || j) c[0][0] += c[i][j];
    }
    taken = c[0][0][0];
}

static void add_up(const float *from, size_t bytes)
{
    const vector *v = (const vector *)from;
    vector c[8];
    size_t n = bytes/sizeof(vector);
    int i;
    memset(c, 0, sizeof c);
    for (; n >= 8; n -= 8, v += 8) {
#pragma GCC unroll 8
        for (i = 0; i < 8; i++) c[i] += v[i];
    }
    for (i = 1; i < 8; i++) c[0] += c[i];
    taken = c[0][0];
}

enum { MOST = 100000 };                 /* repetitions */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9*(double)t.tv_nsec;
}

static void copy_over(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
    __asm__ volatile("" : : "r"(to) : "memory");
}

int main(int argc, char **argv)
{
    const char *what = argc > 3 ? argv[1] : "";
    const int threads = argc > 3 ? atoi(argv[2]) : 1;
    const int tile = !strcmp(what, "tile"), flops = tile || !strcmp(what, "flops");
    const int copy = !strcmp(what, "copy");
    const double seconds = argc > 3 ? atof(argv[3]) : 0;
    size_t bytes = argc > 4 ? (size_t)atof(argv[4])/(size_t)(threads > 0 ? threads : 1) : 0;
    const size_t repeat = tile ? 20 : flops ? 50 : 1 + (size_t)2e7/(bytes + 1);     /* 1 ms or so */
    static double times[MOST];
    double end;
    int count = 0;
    char *memory;
    int at;
    if (threads < 1 || !(flops ? argc == 4 : (copy || !strcmp(what, "read")) && argc == 5)) {
        fputs("peak flops|tile THREADS SECONDS | copy|read THREADS SECONDS BYTES: see peak.c\n",
              stderr);
        return 1;
    }
    bytes = (bytes + 63)/64*64;
    memory = (char *)malloc(64 + 2*bytes*(size_t)threads);
    if (!memory) return 1;
    memset(memory, 1, 64 + 2*bytes*(size_t)threads);    /* pages of their own: not those of 0 */
    memory += 64 - (size_t)memory%64;
    for (at = 0; at < DEPTH*ROWS; at++) row_values[at] = given/(float)(at + 1);
    for (at = 0; at < DEPTH*COLS; at++) columns[at] += given*(float)at;
    end = now() + seconds;
    do {
        const double start = now();
        int t;
#pragma omp parallel for num_threads(threads)
        for (t = 0; t < threads; t++) {
            char *mine = memory + 2*bytes*(size_t)t;
            size_t i;
            for (i = 0; i < repeat; i++) {
                if (tile) multiply_tile();
                else if (flops) multiply_and_add();
                else if (copy) copy_over(mine + bytes, mine, bytes);
                else add_up((const float *)mine, bytes);
            }
        }
        times[count++] = now() - start;
    } while (now() < end && count < MOST);
    qsort(times, (size_t)count, sizeof *times, ascending);
    printf("%.6g\n", 1e-9*threads*(double)repeat/times[count/2]*
           (tile    ? 2.0*ROWS*COLS*DEPTH*AGAIN*WIDTH
            : flops ? 2.0*CHAINS*ROUNDS*WIDTH : (double)bytes*(copy ? 2 : 1)));
    return 0;
}
