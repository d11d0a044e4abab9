/* Loads any bytes that it is given: they must do no harm, and must load or be refused with a
   sentence. On its own, the program changes good files in ways that it can repeat. As a fuzzer:
   clang -DFUZZ_ENTRY_ONLY -fsanitize=fuzzer,address,undefined tests/fuzz_load.c tests/sru.c */
#include "test.h"
#include "../sru.h"

#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_WEIGHTS = 1 << 24 };

static float sum;       /* of all values that were loaded, so that all are really read */

/* Ends the program with a sentence unless ok: the library then has a fault. */
static void demand(int ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "fuzz_load: %s\n", what);
    abort();
}

static int ends(const char *error)
{
    return memchr(error, 0, SRU_ERROR_SIZE) != NULL;
}

/* Loads the bytes in the form `type`, and runs a step if that gives a network. */
static void load(const uint8_t *data, size_t size, sru_type type, const char *prefix,
                 const sru_config *config)
{
    char error[SRU_ERROR_SIZE];
    sru_sizes need;
    sru_model m;
    sru_status status;
    memset(&m, 0, sizeof m);
    memset(error, '!', sizeof error);
    m.type = type;
    if (config) m.config = *config;
    status = sru_load_bytes(&m, NULL, data, size, prefix, error);
    demand(ends(error), "a sentence without an end");
    if (status) {
        demand(error[0] != 0, "a failure without a sentence");
        demand(!m.weights, "weights although it failed");
    } else {
        sru_status again;
        void *weights;
        demand(!sru_size(&need, NULL, &m, 1, 1), "a config that was loaded is not valid");
        if (need.weights > MOST_WEIGHTS || need.work > MOST_WEIGHTS) return;
        weights = test_alloc(need.weights);
        again = sru_load_bytes(&m, weights, data, size, prefix, error);
        demand(!again, "it loads without weights, and not with them");
        if (type == SRU_PLAIN) {
            sru_tensor t;
            int i;
            for (i = 0; sru_get_tensor(&t, &m, i); i++) {
                size_t count = 1, k;
                for (k = 0; k < 4 && t.shape[k]; k++) count *= t.shape[k];
                for (k = 0; k < count; k++) sum += t.data[k];
            }
        }
        if (need.weights < 100000) {
            const size_t N = (size_t)m.config.hidden_size*(m.config.bidirectional ? 2 : 1);
            sru_io io;
            memset(&io, 0, sizeof io);
            io.T = io.B = 1;
            io.x = test_floats((size_t)m.config.input_size);
            io.h = test_floats(N);
            demand(!sru_forward(NULL, &m, &io), "what was loaded does not run");
            free((void *)(uintptr_t)io.x);
            free(io.h);
        }
        free(weights);
    }
}

static void read_tensor(const uint8_t *data, size_t size, const char *name)
{
    char error[SRU_ERROR_SIZE];
    sru_tensor t;
    sru_status status;
    memset(&t, 0, sizeof t);
    memset(error, '!', sizeof error);
    strcpy(t.name, name);
    status = sru_read_tensor(&t, data, size, error);
    demand(ends(error), "a sentence without an end");
    if (!status) {
        size_t count = 1, k;
        for (k = 0; k < 4 && t.shape[k]; k++) count *= t.shape[k];
        demand(count <= size, "a tensor larger than its file");
        t.data = test_floats(count);
        sru_read_tensor(&t, data, size, error);
        if (k == 2) {
            t.transpose = 1;
            t.interleave = t.shape[1] % 3 == 0 ? 3 : 1;
            sru_read_tensor(&t, data, size, error);
        }
        free(t.data);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* in memory of its own, so that a sanitizer sees a read past the end */
    uint8_t *copy = (uint8_t *)test_alloc(size);
    sru_config config;
    int type;
    if (size) memcpy(copy, data, size);
    for (type = SRU_PLAIN; type <= SRU_Q8; type++) load(copy, size, (sru_type)type, "w.", NULL);
    load(copy, size, SRU_PLAIN, NULL, NULL);
    load(copy, size, SRU_PLAIN, "", NULL);
    memset(&config, 0, sizeof config);
    config.input_size = config.hidden_size = 21;
    load(copy, size, SRU_PLAIN, "w.", &config);
    read_tensor(copy, size, "w.rnn_lst.0.weight");
    read_tensor(copy, size, "w.rnn_lst.0.transform_module.weight");
    read_tensor(copy, size, "in.x");
    free(copy);
    return 0;
}

#ifndef FUZZ_ENTRY_ONLY
#include <dirent.h>

enum { MOST_SEEDS = 64 };

static uint8_t *seeds[MOST_SEEDS];
static size_t   seed_sizes[MOST_SEEDS];
static int      seed_count;

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void read_seeds(const char *directory)
{
    DIR *dir = opendir(directory);
    struct dirent *entry;
    char *names[MOST_SEEDS];
    int i, n = 0;
    while (dir && n < MOST_SEEDS && (entry = readdir(dir)) != NULL) {
        if (!strstr(entry->d_name, ".safetensors")) continue;
        names[n] = (char *)test_alloc(strlen(directory) + strlen(entry->d_name) + 2);
        sprintf(names[n++], "%s/%s", directory, entry->d_name);
    }
    if (dir) closedir(dir);
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (i = 0; i < n; i++) {
        size_t size;
        uint8_t *bytes = (uint8_t *)sru_read_file(names[i], &size, NULL);
        if (bytes && size >= 8 && size < 200000 && seed_count < MOST_SEEDS) {
            seeds[seed_count] = bytes;
            seed_sizes[seed_count++] = size;
        } else {
            free(bytes);
        }
        free(names[i]);
    }
}

static size_t below(size_t n) { return n ? (size_t)(test_bits() % n) : 0; }

/* Where the header ends, or the file, if the header is not whole. */
static size_t header_end(const uint8_t *p, size_t size)
{
    size_t n = 0;
    int i;
    if (size < 8) return size;
    for (i = 7; i >= 0; i--) n = n << 8 | p[i];
    return n > size - 8 ? size : n + 8;
}

/* Makes one random change to the bytes at p, where there is room for 4096 more. */
static void change(uint8_t *p, size_t *size)
{
    static const char *const words[] = {
        "0", "1", "-1", "18446744073709551615", "9223372036854775808", "4294967296", "\"", "\\",
        "{", "}", "[", "]", ",", ":", "null", "\\u0000", "\\ud800", "\\u00e9", "F16", "BF16", "F64",
        "U8", "I64", "F32", "rnn_lst.", "w.", "__metadata__", "weight", "true", "1e9", "\\\"",
        "\"__metadata__\":{},", "layer_norm", "bidirectional", "projection_size", "num_layers",
        "\n", "C64", "1,1,1,1,1,1,1,1,", "a name that goes on and on, and on, and on, and on,",
        "\"use_tanh\":\"true\",", "\"window\":\"2\","
    };
    const size_t end = header_end(p, *size);
    const size_t at = test_bits() % 8 ? (end > 8 ? 8 + below(end - 8) : 0) : below(*size);
    int i, resize = 0;
    size_t n = 0;
    if (!*size) return;
    switch (test_bits() % 9) {
    case 0: p[at] = (uint8_t)test_bits(); break;
    case 1: p[at] = (uint8_t)(p[at] ^ 1 << below(8)); break;
    case 2:                                             /* one digit becomes another */
        for (n = at; n < end && !(p[n] >= '0' && p[n] <= '9'); n++) { }
        if (n < end) p[n] = (uint8_t)('0' + below(10));
        break;
    case 3: case 4: {                                   /* a word, over or between others */
        const char *word = words[below(sizeof words/sizeof *words)];
        n = strlen(word);
        if (test_bits() % 2 && at + n <= *size) {
            memcpy(p + at, word, n);
        } else {
            memmove(p + at + n, p + at, *size - at);
            memcpy(p + at, word, n);
            *size += n;
            resize = (int)n;
        }
        break;
    }
    case 5:                                             /* fewer bytes */
        n = 1 + below(40);
        if (at + n > *size) n = *size - at;
        memmove(p + at, p + at + n, *size - at - n);
        *size -= n;
        resize = -(int)n;
        break;
    case 6: {                                           /* a piece of the header, repeated */
        const size_t from = end > 8 ? 8 + below(end - 8) : 0;
        n = 1 + below(200);
        if (from + n > *size) n = *size - from;
        memmove(p + at + n, p + at, *size - at);
        memmove(p + at, p + (from >= at ? from + n : from), n);
        *size += n;
        resize = (int)n;
        break;
    }
    case 7: *size = test_bits() % 2 ? below(*size) : below(end + 1); break;
    default:                                            /* the header's length */
        p[below(*size < 8 ? *size : 8)] = (uint8_t)test_bits();
        break;
    }
    if (resize && at >= 8 && at < end && *size >= 8 && test_bits() % 8) {
        uint64_t length = (uint64_t)(end - 8) + (uint64_t)(int64_t)resize;  /* set right again */
        for (i = 0; i < 8; i++, length >>= 8) p[i] = (uint8_t)length;
    }
}

int main(int argc, char **argv)
{
    long rounds = 0, round;
    int i, directories = 0;
    test_begin(argc, argv,
               "fuzz_load [--rounds N] [DIR...]\n"
               "Changes the files of each DIR, or of tests/golden, N times, and loads them.");
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--rounds") && i + 1 < argc) {
            rounds = test_number(argv[++i], 1000000000);
        } else {
            directories++;
            read_seeds(argv[i]);
        }
    }
    if (!directories) read_seeds("tests/golden");
    if (!seed_count) {
        printf("There is no file to start from.\n");
        test_failed++;
        return test_end();
    }
    if (rounds <= 0) rounds = 3000;
    for (round = 0; round < rounds; round++) {
        size_t seed, size, room;
        uint8_t *p;
        test_random_state = (uint64_t)round + 1;        /* so a round can be repeated alone */
        seed = round < seed_count ? (size_t)round : below((size_t)seed_count);
        size = seed_sizes[seed];
        room = size + 16384;
        p = (uint8_t *)test_alloc(room);
        memcpy(p, seeds[seed], size);
        for (i = round < seed_count ? 0 : 1 + (int)below(test_bits() % 4 ? 3 : 20); i > 0; i--)
            if (size + 512 < room) change(p, &size);
        LLVMFuzzerTestOneInput(p, size);                /* does not return if there is a fault */
        test_passed++;
        free(p);
    }
    while (seed_count) free(seeds[--seed_count]);
    return test_end();
}
#endif
