/* Files: what must load does so, to the bit; all else is refused, with a sentence that helps; what
   is saved is whole, or is not there. */
#define _POSIX_C_SOURCE 200809L
#define _XOPEN_SOURCE   700
#include "naive.h"
#include "safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[512];         /* our own, for what is saved */

/* ---- files, piece by piece ------------------------------------------------------------------- */

typedef struct piece {
    char   name[600];               /* as in the header: escapes and all */
    char   dtype[32];
    size_t rank, shape[ST_RANK];
    size_t begin, end;
} piece;

enum { PIECES = 300 };

/* A file before it is written; a test may make each field wrong. */
typedef struct image {
    char     metadata[3*ST_TEXT];   /* JSON; "": none */
    piece    p[PIECES];
    int      n;
    st_bytes data;
} image;

static image *image_new(void) { return (image *)test_alloc(sizeof(image)); }

static void image_free(image *im)
{
    st_clear(&im->data);
    free(im);
}

static image *image_copy(const image *from)
{
    image *im = image_new();
    *im = *from;
    memset(&im->data, 0, sizeof im->data);
    st_put(&im->data, from->data.p, from->data.n);
    return im;
}

/* Makes room for a tensor's values in one or two dimensions (b = 0: one); tests add others. */
static piece *image_add(image *im, const char *name, const char *dtype, size_t a, size_t b)
{
    piece *p = &im->p[im->n++];
    memset(p, 0, sizeof *p);
    sprintf(p->name, "%.590s", name);
    strcpy(p->dtype, dtype);
    p->rank = b ? 2 : 1;
    p->shape[0] = a;
    p->shape[1] = b;
    p->begin = im->data.n;
    p->end = p->begin + a*(b ? b : 1)*st_dtype_bytes(dtype);
    return p;
}

static piece *image_add_floats(image *im, const char *name, size_t a, size_t b, double scale)
{
    piece *p = image_add(im, name, "F32", a, b);
    size_t i;
    for (i = 0; i < (p->end - p->begin)/4; i++) st_float(&im->data, (float)(scale*test_random()));
    return p;
}

static piece *image_find(image *im, const char *name)
{
    int i;
    for (i = 0; i < im->n; i++)
        if (!strcmp(im->p[i].name, name)) return &im->p[i];
    return NULL;
}

/* Removes piece i and its data. */
static void image_remove(image *im, int i)
{
    const size_t begin = im->p[i].begin, n = im->p[i].end - begin;
    int k;
    memmove(im->data.p + begin, im->data.p + begin + n, im->data.n - begin - n);
    im->data.n -= n;
    memmove(im->p + i, im->p + i + 1, (size_t)(im->n - i - 1)*sizeof *im->p);
    im->n--;
    for (k = 0; k < im->n; k++)
        if (im->p[k].begin > begin) {
            im->p[k].begin -= n;
            im->p[k].end -= n;
        }
}

static void put_piece(st_bytes *b, const piece *p)
{
    char text[800];
    size_t i;
    sprintf(text, "\"%s\":{\"dtype\":\"%s\",\"shape\":[", p->name, p->dtype);
    st_text(b, text);
    for (i = 0; i < p->rank; i++) {
        sprintf(text, i ? ",%lu" : "%lu", (unsigned long)p->shape[i]);
        st_text(b, text);
    }
    sprintf(text, "],\"data_offsets\":[%lu,%lu]}", (unsigned long)p->begin, (unsigned long)p->end);
    st_text(b, text);
}

static st_bytes image_header(const image *im)
{
    st_bytes b;
    int i;
    memset(&b, 0, sizeof b);
    st_text(&b, "{");
    if (im->metadata[0]) {
        st_text(&b, "\"__metadata__\":");
        st_text(&b, im->metadata);
    }
    for (i = 0; i < im->n; i++) {
        if (i || im->metadata[0]) st_text(&b, ",");
        put_piece(&b, &im->p[i]);
    }
    st_text(&b, "}");
    return b;
}

static st_bytes image_file(const image *im)
{
    st_bytes header = image_header(im), file;
    memset(&file, 0, sizeof file);
    st_file_of(&file, header.p, header.n, &im->data);
    st_clear(&header);
    return file;
}

/* ---- networks, as the reference would save them ---------------------------------------------- */

static void config_json(char *text, const sru_config *f)
{
    static const char *const truth[] = { "false", "true" };
    int l, list = 0, n;
    n = sprintf(text, "{\"input_size\": %d, \"hidden_size\": %d", f->input_size, f->hidden_size);
    if (f->num_layers) n += sprintf(text + n, ", \"num_layers\": %d", f->num_layers);
    if (f->dropout > 0) n += sprintf(text + n, ", \"dropout\": %.9g", (double)f->dropout);
    if (f->rnn_dropout > 0)
        n += sprintf(text + n, ", \"rnn_dropout\": %.9g", (double)f->rnn_dropout);
    n += sprintf(text + n, ", \"bidirectional\": %s", truth[f->bidirectional]);
    for (l = 0; l < naive_layers(f); l++) list |= f->projection_sizes[l];
    if (list) {
        n += sprintf(text + n, ", \"projection_size\": ");
        for (l = 0; l < naive_layers(f); l++)
            n += sprintf(text + n, "%s%d", l ? ", " : "[", f->projection_sizes[l]);
        n += sprintf(text + n, "]");
    } else if (f->projection_size) {
        n += sprintf(text + n, ", \"projection_size\": %d", f->projection_size);
    }
    n += sprintf(text + n, ", \"use_tanh\": %s, \"layer_norm\": %s, \"normalize_after\": %s",
                 truth[f->use_tanh], truth[f->layer_norm], truth[f->normalize_after]);
    n += sprintf(text + n, ", \"highway_bias\": %.9g", (double)f->highway_bias);
    n += sprintf(text + n, ", \"has_skip_term\": %s, \"rescale\": %s, \"v1\": %s",
                 truth[!f->no_skip_term], truth[f->rescale], truth[f->v1]);
    n += sprintf(text + n, ", \"nn_rnn_compatible_return\": %s, \"proj_input_to_hidden_first\": %s",
                 truth[f->nn_rnn_compatible_return], truth[f->proj_input_to_hidden_first]);
    if (f->weight_c_init > 0)
        n += sprintf(text + n, ", \"weight_c_init\": %.9g", (double)f->weight_c_init);
    sprintf(text + n, "}");
}

/* The same as a string of JSON. */
static void quoted(char *to, const char *text)
{
    *to++ = '"';
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') *to++ = '\\';
        *to++ = *text;
    }
    strcpy(to, "\"");
}

static void set_metadata(image *im, const char *config)
{
    char *text = (char *)test_alloc(2*strlen(config) + 3);
    quoted(text, config);
    sprintf(im->metadata, "{\"module\":\"SRU\",\"config\":%.*s}", (int)(sizeof im->metadata - 64),
            text);
    free(text);
}

/* Adds random weights of a network, under the reference's names. */
static image *network(const sru_config *f, const char *prefix)
{
    const size_t N = naive_width(f), I = (size_t)f->input_size;
    image *im = image_new();
    char name[600], config[ST_TEXT];
    int l;
    config_json(config, f);
    set_metadata(im, config);
    if (naive_input_first(f)) {
        sprintf(name, "%.500sinput_to_hidden.weight", prefix);
        image_add_floats(im, name, N, I, 1);
    }
    for (l = 0; l < naive_layers(f); l++) {
        const size_t in = naive_layer_input(f, l), K = (size_t)naive_matrices(f, l);
        const size_t P = naive_projection(f, l);
        const int n = sprintf(name, "%.500srnn_lst.%d.", prefix, l);
#define NAME(x) (strcpy(name + n, x), name)
        if (f->arch == SRU_ARCH_SRU) {
            if (P) image_add_floats(im, NAME("weight_proj"), in, P, 1);
            image_add_floats(im, NAME("weight"), P ? P : in, N*K, 1);
        } else if (P) {
            image_add_floats(im, NAME("transform_module.0.weight"), P, in, 1);
            image_add_floats(im, NAME("transform_module.1.weight"), N*K, P, 1);
        } else {
            image_add_floats(im, NAME("transform_module.weight"), N*K, in, 1);
        }
        image_add_floats(im, NAME("weight_c"), 2*N, 0, f->v1 ? 0 : 1);
        image_add_floats(im, NAME("bias"), 2*N, 0, 1);
        image_add(im, NAME("scale_x"), "F32", 1, 0);
        st_float(&im->data, (float)naive_scale_x(f));
        if (f->layer_norm) {
            image_add_floats(im, NAME("layer_norm.weight"), f->normalize_after ? N : in, 0, 1);
            image_add_floats(im, NAME("layer_norm.bias"), f->normalize_after ? N : in, 0, 1);
        }
#undef NAME
    }
    return im;
}

static sru_config small_config(sru_arch arch)
{
    sru_config f;
    memset(&f, 0, sizeof f);
    f.input_size = 3;
    f.hidden_size = 2;
    f.arch = arch;
    return f;
}

static size_t weights_size(const sru_config *f, sru_type type)
{
    sru_model m;
    sru_sizes need;
    memset(&m, 0, sizeof m);
    m.config = *f;
    m.type = type;
    CHECK(!sru_size(&need, NULL, &m, 1, 1), "of a valid config");
    return need.weights;
}

/* ---- loading, watched ------------------------------------------------------------------------ */

static int printable(const char *sentence)
{
    size_t n = 0;
    while (n < SRU_ERROR_SIZE && sentence[n]) n++;
    return n > 0 && n < SRU_ERROR_SIZE;
}

/* Loads bytes that end where their memory ends, at some offset from alignment: with and without
   weights, with and without room for a sentence, and with a given config. The results of all these
   must agree with the result without weights. */
static sru_status load(const unsigned char *bytes, size_t size, const char *prefix, size_t offset,
                       sru_model *result, char sentence[SRU_ERROR_SIZE])
{
    unsigned char *block = (unsigned char *)test_alloc(size + offset);
    char *error = (char *)test_alloc(SRU_ERROR_SIZE);
    sru_config f = small_config(SRU_ARCH_SRU);
    sru_model m, other;
    sru_status status;
    const size_t n = weights_size(&f, SRU_PLAIN);
    size_t i;
    void *weights;
    if (size) memcpy(block + offset, bytes, size);
    memset(&m, 0, sizeof m);
    memset(error, '!', SRU_ERROR_SIZE);
    status = sru_load_bytes(&m, NULL, block + offset, size, prefix, error);
    if (status) {
        if (!printable(error)) CHECK(0, "a failure without a sentence: status %d", (int)status);
        strcpy(sentence, printable(error) ? error : "");
        memset(&other, 0, sizeof other);
        if (memcmp(&m, &other, sizeof m)) CHECK(0, "a model is changed, yet failed to load");
    } else {
        sru_sizes need;
        sentence[0] = 0;
        CHECK(!sru_size(&need, NULL, &m, 1, 1), "a config that was loaded is not valid");
        weights = test_alloc(need.weights);
        other = m;
        memset(&other.config, 0, sizeof other.config);
        status = sru_load_bytes(&other, weights, block + offset, size, prefix, NULL);
        CHECK(!status, "loads without weights, not with: status %d", (int)status);
        CHECK(other.weights == weights, "m->weights is not set");
        CHECK(!memcmp(&other.config, &m.config, sizeof m.config), "another config with weights");
        free(weights);
    }
    if (result) *result = m;
    memset(&other, 0, sizeof other);
    other.weights = block;
    if (sru_load_bytes(&other, NULL, block + offset, size, prefix, NULL) != status)
        CHECK(0, "another status where error is NULL");
    if (other.weights != block) CHECK(0, "without weights, m->weights is changed");

    /* this needs no metadata, so that more of a faulty file is looked at */
    weights = test_alloc(n);
    memset(weights, '!', n);
    memset(&other, 0, sizeof other);
    other.config = f;
    if (sru_load_bytes(&other, weights, block + offset, size, prefix, error)) {
        if (!printable(error)) CHECK(0, "a failure without a sentence, with a config given");
        if (memcmp(&other.config, &f, sizeof f)) CHECK(0, "a failure that changes a given config");
        for (i = 0; i < n && ((char *)weights)[i] == '!'; i++) { }
        if (i < n) CHECK(0, "a failure that changes weights");
    }
    free(weights);
    free(error);
    free(block);
    return status;
}

static int says(const char *sentence, const char *word)
{
    return !word || strstr(sentence, word) != NULL;
}

/* Loading must fail, with a sentence that has these words (fewer, if some are NULL). */
static void refuse_bytes(const char *what, const st_bytes *file, const char *prefix, const char *a,
                         const char *b, const char *c)
{
    char sentence[SRU_ERROR_SIZE];
    const sru_status status = load(file->p, file->n, prefix, 0, NULL, sentence);
    CHECK(status == SRU_EFILE, "%s: status %d", what, (int)status);
    CHECK(says(sentence, a) && says(sentence, b) && says(sentence, c),
          "%s: '%s' should say '%s', '%s', '%s'", what, sentence, a ? a : "", b ? b : "",
          c ? c : "");
}

static void refuse(const char *what, const image *im, const char *a, const char *b, const char *c)
{
    st_bytes file = image_file(im);
    refuse_bytes(what, &file, NULL, a, b, c);
    st_clear(&file);
}

static void accept_bytes(const char *what, const st_bytes *file, const char *prefix)
{
    char sentence[SRU_ERROR_SIZE];
    const sru_status status = load(file->p, file->n, prefix, 0, NULL, sentence);
    CHECK(!status, "%s: status %d: %s", what, (int)status, sentence);
}

static void accept(const char *what, const image *im, const char *prefix)
{
    st_bytes file = image_file(im);
    accept_bytes(what, &file, prefix);
    st_clear(&file);
}

/* A header of our own wording, and data. */
static void refuse_header(const char *what, const char *header, size_t n, size_t data,
                          const char *a, const char *b)
{
    st_bytes file, zeros;
    memset(&file, 0, sizeof file);
    memset(&zeros, 0, sizeof zeros);
    while (zeros.n < data) st_put(&zeros, "", 1);
    st_file_of(&file, header, n, &zeros);
    refuse_bytes(what, &file, NULL, a, b, NULL);
    st_clear(&file);
    st_clear(&zeros);
}

/* ---- bad input ------------------------------------------------------------------------------- */

static void test_truncation(void)
{
    int arch;
    for (arch = 0; arch < 2; arch++) {
        sru_config f = small_config((sru_arch)arch);
        image *im = network(&f, arch ? "encoder." : "");
        st_bytes file = image_file(im);
        char sentence[SRU_ERROR_SIZE];
        size_t n;
        for (n = 0; n < file.n; n++) {
            const sru_status status = load(file.p, n, NULL, 0, NULL, sentence);
            CHECK(status == SRU_EFILE, "cut to %lu of %lu bytes: status %d", (unsigned long)n,
                  (unsigned long)file.n, (int)status);
        }
        accept_bytes("the whole file", &file, NULL);
        for (n = 1; n <= 9; n++) {
            st_put(&file, "\0\0\0\0", n < 9 ? 1 : 4);
            refuse_bytes("with more at its end", &file, NULL, "bytes of data", NULL, NULL);
        }
        st_clear(&file);
        image_free(im);
    }
}

/* Headers that end at any place, at the very end of their memory. */
static void test_broken_off(void)
{
    static const char header[] = "{\"__metadata__\":{\"module\":\"SRU\",\"config\":\"{}\"},\"a\\n"
        "\\u00e9\\ud83d\\ude00\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    size_t n;
    for (n = 0; n < sizeof header; n++) {
        char *bytes = (char *)test_alloc(8 + n), sentence[SRU_ERROR_SIZE];
        sru_tensor t;
        sru_status status;
        memset(bytes, 0, 8);
        bytes[0] = (char)n;
        memcpy(bytes + 8, header, n);
        memset(&t, 0, sizeof t);
        strcpy(t.name, "b");
        status = sru_read_tensor(&t, bytes, 8 + n, sentence);
        CHECK(status == (n + 1 < sizeof header ? SRU_EFILE : SRU_ENOENT),
              "a header of %lu bytes: status %d, '%s'", (unsigned long)n, (int)status, sentence);
        free(bytes);
    }
}

static void test_header_length(void)
{
    sru_config f = small_config(SRU_ARCH_SRU);
    image *im = network(&f, "");
    st_bytes file = image_file(im), header = image_header(im);
    const uint64_t lengths[] = {
        0, 1, 2, header.n - 1, header.n + 1, header.n + 4, file.n - 9, file.n - 8, file.n - 7,
        file.n - 1, file.n, file.n + 1, UINT64_C(1) << 24, UINT64_C(100000000),
        (UINT64_C(1) << 31) - 1, UINT64_C(1) << 31, (UINT64_C(1) << 32) - 1, UINT64_C(1) << 32,
        (UINT64_C(1) << 32) + header.n, UINT64_C(1) << 53, (UINT64_C(1) << 63) - 1,
        UINT64_C(1) << 63, (UINT64_C(1) << 63) + header.n, UINT64_MAX - 8, UINT64_MAX - 7,
        UINT64_MAX - 1, UINT64_MAX
    };
    size_t i;
    for (i = 0; i < sizeof lengths/sizeof *lengths; i++) {
        st_bytes bad;
        char what[64];
        memset(&bad, 0, sizeof bad);
        st_little(&bad, lengths[i], 8);
        st_put(&bad, file.p + 8, file.n - 8);
        sprintf(what, "a header of %.0f bytes", (double)lengths[i]);
        refuse_bytes(what, &bad, NULL, NULL, NULL, NULL);
        if (lengths[i] > file.n - 8) refuse_bytes(what, &bad, NULL, "header", NULL, NULL);
        st_clear(&bad);
    }
    memcpy(file.p, "PK\3\4\0\0\10\10", 8);
    refuse_bytes("a .pt", &file, NULL, ".pt", "save_file()", NULL);
    st_clear(&file);
    st_clear(&header);
    image_free(im);
}

static const char *const extremes[] = {
    "0", "1", "2", "7", "4294967295", "4294967296", "2147483647", "2147483648", "9007199254740992",
    "9007199254740993", "4611686018427387904", "9223372036854775807", "9223372036854775808",
    "18446744073709551615", "18446744073709551616", "18446744073709551617",
    "99999999999999999999999999999999999999", "-1", "-0", "1e3", "1E0", "1.0", "2.0", "0.5", "NaN",
    "Infinity", "-Infinity", "nan", "inf", "00", "01", "+1", "0x10", "", " ", "null", "true",
    "\"1\"", "[]", "[1]", "{}", "1 1", "1,", ",1", "1]", "1}", "'1'", "1_000", "\xff"
};
enum { EXTREMES = sizeof extremes/sizeof *extremes };

/* Each number in the header is replaced by each extreme one, and by sizes near the true ones. */
static void test_numbers(void)
{
    sru_config f = small_config(SRU_ARCH_SRU);
    image *im = network(&f, "");
    st_bytes header = image_header(im);
    const char *h = (const char *)header.p;
    size_t at, end, i;
    int inside = 0;
    for (at = 0; at < header.n; at++) {
        if (h[at] == '"' && (!at || h[at - 1] != '\\')) inside = !inside;
        if (inside || h[at] < '0' || h[at] > '9') continue;
        for (end = at; h[end] >= '0' && h[end] <= '9'; end++) { }
        for (i = 0; i < EXTREMES + 6; i++) {
            st_bytes changed, file;
            char text[64], sentence[SRU_ERROR_SIZE];
            sru_status status;
            long was = strtol(h + at, NULL, 10);
            memset(&changed, 0, sizeof changed);
            memset(&file, 0, sizeof file);
            if (i < EXTREMES) strcpy(text, extremes[i]);
            else if (i < EXTREMES + 2) sprintf(text, "%ld", was + (i == EXTREMES ? -1 : 1));
            else if (i == EXTREMES + 2) sprintf(text, "%lu", (unsigned long)im->data.n - 1);
            else if (i == EXTREMES + 3) sprintf(text, "%lu", (unsigned long)im->data.n);
            else if (i == EXTREMES + 4) sprintf(text, "%lu", (unsigned long)im->data.n + 1);
            else sprintf(text, "0%ld", was);
            if (strlen(text) == end - at && !memcmp(text, h + at, end - at)) continue;
            st_put(&changed, h, at);
            st_text(&changed, text);
            st_put(&changed, h + end, header.n - end);
            st_file_of(&file, changed.p, changed.n, &im->data);
            status = load(file.p, file.n, NULL, 0, NULL, sentence);
            CHECK(status == SRU_EFILE, "with %s instead of %ld at byte %lu: status %d", text, was,
                  (unsigned long)at, (int)status);
            st_clear(&changed);
            st_clear(&file);
        }
        at = end - 1;
    }
    st_clear(&header);
    image_free(im);
}

/* Each byte of the header is replaced by others: the file may still load, but must do no harm. */
static void test_bytes(void)
{
    static const char others[] = "\0\"\\{}[]:,0 9u\xff";
    sru_config f = small_config(SRU_ARCH_SRU3);
    image *im = network(&f, "");
    st_bytes file = image_file(im), header = image_header(im);
    char sentence[SRU_ERROR_SIZE];
    size_t at, i, refused = 0, tried = 0;
    for (at = 8; at < 8 + header.n; at++) {
        const unsigned char was = file.p[at];
        for (i = 0; i < sizeof others - 1; i++) {
            file.p[at] = (unsigned char)others[i];
            refused += load(file.p, file.n, NULL, 0, NULL, sentence) == SRU_EFILE;
            tried++;
        }
        file.p[at] = was;
    }
    CHECK(refused > tried*9/10, "%lu of %lu changed headers refused", (unsigned long)refused,
          (unsigned long)tried);
    st_clear(&file);
    st_clear(&header);
    image_free(im);
}

static void test_tensors_of_a_network(void)
{
    int arch, i;
    for (arch = 0; arch < 2; arch++) {
        sru_config f = small_config((sru_arch)arch);
        image *good, *im;
        f.layer_norm = 1;
        f.input_size = 5;
        f.projection_size = 1;
        f.proj_input_to_hidden_first = arch;
        good = network(&f, "net.");
        accept("a network", good, NULL);
        for (i = 0; i < good->n; i++) {
            const piece *p = &good->p[i];
            char was[400], is[400];
            size_t d;
            st_shape(was, p->shape, p->rank);

            im = image_copy(good);
            image_remove(im, i);
            if (good->n > 1) refuse("without a tensor", im, p->name, was, "missing");
            image_free(im);

            for (d = 0; d < p->rank; d++) {             /* one more of a dimension */
                im = image_copy(good);
                image_remove(im, i);
                image_add(im, p->name, "F32", p->shape[0] + (d == 0),
                          p->rank == 2 ? p->shape[1] + (d == 1) : 0);
                while (im->data.n < im->p[im->n - 1].end) st_put(&im->data, "", 1);
                st_shape(is, im->p[im->n - 1].shape, p->rank);
                refuse("a tensor that is too large", im, p->name, was, is);
                image_free(im);
            }
            im = image_copy(good);                      /* the same numbers, another rank */
            im->p[i].shape[im->p[i].rank++] = 1;
            st_shape(is, im->p[i].shape, im->p[i].rank);
            refuse("a tensor of one more dimension", im, p->name, was, is);
            im->p[i].rank = 0;
            if (p->end - p->begin == 4) {
                refuse("a tensor without dimensions", im, p->name, was, "()");
            } else {
                refuse("a tensor whose bytes do not fit", im, p->name, "shape", NULL);
                im->p[i].rank = 1;
                im->p[i].shape[0] = (p->end - p->begin)/4;
                st_shape(is, im->p[i].shape, 1);
                if (p->rank == 2) refuse("a flat tensor", im, p->name, was, is);
            }
            image_free(im);
            if (p->rank == 2 && p->shape[0] != p->shape[1]) {
                im = image_copy(good);
                im->p[i].shape[0] = p->shape[1];
                im->p[i].shape[1] = p->shape[0];
                st_shape(is, im->p[i].shape, 2);
                refuse("a transposed tensor", im, p->name, was, is);
                image_free(im);
            }
            im = image_copy(good);
            strcpy(im->p[i].dtype, "I32");
            refuse("whole numbers as weights", im, p->name, "I32", NULL);
            strcpy(im->p[i].dtype, "F31");
            refuse("an unknown type", im, p->name, "F31", "cannot be read");
            strcpy(im->p[i].dtype, "f32");
            refuse("an unknown type", im, p->name, "f32", "cannot be read");
            strcpy(im->p[i].dtype, "");
            refuse("an empty type", im, p->name, NULL, NULL);
            image_free(im);

            im = image_copy(good);
            image_add_floats(im, p->name, 1, 0, 1);
            refuse("two tensors of one name", im, p->name, "two", NULL);
            sprintf(im->p[im->n - 1].name, "\\u%04x%s", (unsigned)p->name[0], p->name + 1);
            refuse("two tensors of one name, one of them escaped", im, p->name, "two", NULL);
            image_free(im);

            im = image_copy(good);
            strcat(im->p[i].name, "x");
            refuse("a tensor with another name", im, "net.", NULL, NULL);
            image_free(im);
        }
        {
            static const char *const names[] = {
                "net.x", "net.rnn_lst.0.x", "net.rnn_lst.2.weight", "net.rnn_lst.0.weight.x",
                "net.rnn_lst.00.bias", "net.rnn_lst..bias", "net.rnn_lst.0.weight_", "net.bias",
                "net.rnn_lst.1.weight_d", "net.rnn_lst.-1.bias", "net.rnn_lst.4294967296.bias",
                "net.rnn_lst.0.transform_module.2.weight", "net.rnn_lst.1.Bias",
                "net.rnn_lst.1.layer_norm.weight.", "net.net.", "net."
            };
            for (i = 0; i < (int)(sizeof names/sizeof *names); i++) {
                im = image_copy(good);
                image_add_floats(im, names[i], 2, 0, 1);
                /* if one name is of 3.0-dev, the others, of 2.x, are at fault */
                if (strstr(names[i], "transform_module") && !arch)
                    refuse("an unexpected tensor", im, "net.", NULL, NULL);
                else
                    refuse("an unexpected tensor", im, names[i], "unexpected", NULL);
                image_free(im);
            }
        }
        im = image_copy(good);                          /* the other layout's name, in addition */
        image_add_floats(im, arch ? "net.rnn_lst.0.weight"
                                  : "net.rnn_lst.0.transform_module.weight", 4, 4, 1);
        refuse("both layouts", im, "net.rnn_lst.0.", NULL, NULL);
        image_free(im);
        image_free(good);
    }
}

static void test_container(void)
{
    sru_config f = small_config(SRU_ARCH_SRU);
    image *good = network(&f, "net."), *im;
    st_bytes header, file;
    size_t i, k;
    memset(&file, 0, sizeof file);

    im = image_copy(good);                              /* a hole, of four bytes, between two */
    st_put(&im->data, "\0\0\0\0", 4);
    memmove(im->data.p + im->p[3].begin + 4, im->data.p + im->p[3].begin,
            im->data.n - 4 - im->p[3].begin);
    for (i = 3; i < (size_t)im->n; i++) {
        im->p[i].begin += 4;
        im->p[i].end += 4;
    }
    refuse("a hole", im, "bytes of data", NULL, NULL);
    image_free(im);
    im = image_copy(good);                              /* and one before the first */
    st_put(&im->data, "\0\0\0\0", 4);
    for (i = 0; i < (size_t)im->n; i++) {
        im->p[i].begin += 4;
        im->p[i].end += 4;
    }
    refuse("a hole at the start", im, "bytes of data", NULL, NULL);
    image_free(im);
    for (k = 1; k <= 9; k += 4) {                       /* one or more bytes back into another */
        im = image_copy(good);
        for (i = 2; i < (size_t)im->n; i++) {
            im->p[i].begin -= k;
            im->p[i].end -= k;
        }
        im->data.n -= k;
        refuse("an overlap", im, "bytes of data", NULL, NULL);
        for (i = 0; i < k; i++) st_put(&im->data, "", 1);   /* and as many behind the last */
        refuse("an overlap, and a hole", im, "overlap", NULL, NULL);
        image_free(im);
    }
    im = image_copy(good);                              /* two tensors of the same bytes */
    for (i = 0; i < (size_t)im->n && strcmp(im->p[i].name, "net.rnn_lst.1.bias"); i++) { }
    image_remove(im, (int)i);
    image_add(im, "net.rnn_lst.1.bias", "F32", 4, 0);
    im->p[im->n - 1].begin = image_find(im, "net.rnn_lst.0.bias")->begin;
    im->p[im->n - 1].end = image_find(im, "net.rnn_lst.0.bias")->end;
    refuse("two tensors of the same bytes", im, "bytes of data", NULL, NULL);
    for (i = 0; i < 16; i++) st_put(&im->data, "", 1);
    refuse("two tensors of the same bytes, and as many of none", im, "overlap", NULL, NULL);
    image_free(im);
    for (i = 0; i < (size_t)good->n; i++) {             /* a whole tensor lies elsewhere */
        const size_t bytes = good->p[i].end - good->p[i].begin;
        const size_t ends[] = { good->data.n + 1, good->data.n + bytes, 3*good->data.n + 4096,
                                (size_t)1 << 31, SIZE_MAX/2, SIZE_MAX, 0, bytes - 1 };
        for (k = 0; k < sizeof ends/sizeof *ends; k++) {
            im = image_copy(good);
            im->p[i].end = ends[k];
            im->p[i].begin = ends[k] - bytes;           /* for the last two, near SIZE_MAX */
            refuse("a tensor beyond the data", im, im->p[i].name, NULL, NULL);
            image_free(im);
        }
    }
    for (i = 0; i < (size_t)good->n; i++) {             /* fewer bytes, or more, than its shape */
        static const int more[] = { 1, 4, -1, -4, -1000 };
        static const char *const types[] = { "F64", "F16", "BF16", "U8", "F8_E4M3", "I64" };
        const size_t bytes = good->p[i].end - good->p[i].begin;
        for (k = 0; k < sizeof more/sizeof *more; k++) {
            const size_t now = more[k] > 0 ? bytes + (size_t)more[k]
                             : bytes > (size_t)-more[k] ? bytes - (size_t)-more[k] : 0;
            int j;
            im = image_copy(good);
            while (im->data.n < good->data.n - bytes + now) st_put(&im->data, "", 1);
            im->data.n = good->data.n - bytes + now;
            for (j = (int)i; j < im->n; j++) {
                if (j > (int)i) im->p[j].begin = im->p[j].begin - bytes + now;
                im->p[j].end = im->p[j].end - bytes + now;
            }
            refuse("bytes that are not those of the shape", im, im->p[i].name, "shape", NULL);
            image_free(im);
        }
        for (k = 0; k < sizeof types/sizeof *types; k++) {
            im = image_copy(good);
            strcpy(im->p[i].dtype, types[k]);
            refuse("bytes that are not those of the type", im, im->p[i].name, "shape", NULL);
            image_free(im);
        }
    }
    for (i = 0; i < ST_DTYPES; i++)                     /* of every type, if it is not read */
        for (k = 0; k < 2; k++) {
            piece *p;
            im = image_copy(good);
            p = image_add(im, "other", st_dtypes[i].name, 3, 0);
            p->end += k;
            while (im->data.n < p->end) st_put(&im->data, "", 1);
            if (k) refuse(p->dtype, im, "other", "shape", NULL);
            else accept(p->dtype, im, NULL);
            image_free(im);
        }
    im = image_copy(good);
    i = im->p[2].begin;
    im->p[2].begin = im->p[2].end;
    im->p[2].end = i;
    refuse("a tensor that ends before it begins", im, im->p[2].name, NULL, NULL);
    image_free(im);
    im = image_copy(good);
    im->p[2].rank = 9;
    for (i = 1; i < 9; i++) im->p[2].shape[i] = 1;
    refuse("nine dimensions", im, NULL, NULL, NULL);
    im->p[2].shape[8] = 2;
    refuse("nine dimensions, of more than is there", im, im->p[2].name, "bytes of data", NULL);
    im->p[2].rank = 8;
    refuse("eight dimensions", im, im->p[2].name, "(4,1,1,1,1,1,1,1)", NULL);
    for (i = 0; i < 8; i++) im->p[2].shape[i] = 65536;  /* 2^128 */
    refuse("a product that overflows", im, im->p[2].name, NULL, NULL);
    im->p[2].rank = 2;
    im->p[2].shape[0] = (size_t)1 << (sizeof(size_t)*4);
    im->p[2].shape[1] = (size_t)1 << (sizeof(size_t)*4);
    refuse("a product that is 0 after overflow", im, im->p[2].name, NULL, NULL);
    im->p[2].shape[0] = SIZE_MAX/4 + 2;                 /* times four bytes: 4 */
    im->p[2].rank = 1;
    refuse("bytes that overflow", im, im->p[2].name, NULL, NULL);
    im->p[2].shape[0] = 0;
    im->p[2].shape[1] = SIZE_MAX;
    im->p[2].rank = 2;
    refuse("nothing, and yet bytes", im, im->p[2].name, NULL, NULL);
    image_free(im);

    header = image_header(good);
    {
        static const char *const tails[] = { "x", "}", "{", "{}", "\"", ",", "]", "1", "   x",
                                             "\v", "\f", "null", "//" };
        static const char *const spaces[] = { " ", "\n", "\t\r\n      ", "        " };
        const size_t n = header.n;
        for (i = 0; i < sizeof tails/sizeof *tails; i++) {
            header.n = n;
            st_text(&header, tails[i]);
            st_file_of(&file, header.p, header.n, &good->data);
            refuse_bytes("more behind the header", &file, NULL, "header", NULL, NULL);
        }
        header.n = n;
        st_put(&header, "\0", 1);
        st_file_of(&file, header.p, header.n, &good->data);
        refuse_bytes("a zero behind the header", &file, NULL, "header", NULL, NULL);
        for (i = 0; i < sizeof spaces/sizeof *spaces; i++) {
            header.n = n;
            st_text(&header, spaces[i]);
            st_file_of(&file, header.p, header.n, &good->data);
            accept_bytes("spaces behind the header", &file, NULL);
        }
    }
    st_clear(&header);
    st_clear(&file);
    image_free(good);
}

static void test_json(void)
{
    static const char *const headers[] = {
        "", " ", "{", "}", "[]", "null", "\"\"", "0", "{}x", "{,}", "{\"a\"}", "{\"a\":}",
        "{\"a\":1}", "{\"a\":[]}", "{\"a\":\"b\"}", "{\"a\":null}", "{\"a\":{}}", "{a:{}}",
        "{'a':{}}",
        "{\"a\":{\"dtype\":\"F32\"}}", "{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0 4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[,1],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":{}}}",
        "{\"a\":{\"dtype\":32,\"shape\":[],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"shape\":[],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"more\":1}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],}}",
        "{\"a\":{\"dtype\":\"F32\" \"shape\":[],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]} \"b\":{}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]]",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}}",
        "{\"a\":{\"dtype\":\"a type longer than any\",\"shape\":[],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"a key longer than any\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
        "{\"__metadata__\":1}", "{\"__metadata__\":[]}", "{\"__metadata__\":null}",
        "{\"__metadata__\":\"\"}", "{\"__metadata__\":{\"a\":1}}", "{\"__metadata__\":{\"a\":{}}}",
        "{\"__metadata__\":{\"a\":null}}", "{\"__metadata__\":{\"a\":\"b\",}}",
        "{\"__metadata__\":{\"a\"}}", "{\"__metadata__\":{\"a\":}}", "{\"__metadata__\":{,}}",
        "{\"__metadata__\":{}", "{\"__metadata__\":{},}", "{\"__metadata__\":{}}}",
        "{\"__metadata__\":{\"a\":\"b\" \"c\":\"d\"}}",
        "\xef\xbb\xbf{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}"
    };
    /* inside a tensor's name */
    static const char *const names[] = {
        "\\", "\\x", "\\'", "\\0", "\\a", "\\U0041", "\\u", "\\u1", "\\u12", "\\u123", "\\u12g4",
        "\\u-123", "\\u+123", "\\u 123", "\\u000", "\\ud800", "\\ud800x", "\\ud800\\n",
        "\\ud800\\u0041", "\\ud800\\ud800", "\\udbff\\ue000", "\\ud83d\\ud", "\\ud83d\\", "\\udc00",
        "\\udfff\\ud800", "\\uD800\\uD7FF", "a\nb", "a\tb", "a\x01", "\x1f"
    };
    char header[300];
    size_t i;
    for (i = 0; i < sizeof headers/sizeof *headers; i++)
        refuse_header(headers[i], headers[i], strlen(headers[i]), 4, NULL, NULL);
    for (i = 0; i < sizeof names/sizeof *names; i++) {
        sprintf(header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
                names[i]);
        refuse_header(names[i], header, strlen(header), 4, "header is damaged", "expected");
        sprintf(header, "{\"__metadata__\":{\"%s\":\"\"}}", names[i]);
        refuse_header(names[i], header, strlen(header), 0, "header is damaged", "expected");
        sprintf(header, "{\"__metadata__\":{\"a\":\"%s\"}}", names[i]);
        refuse_header(names[i], header, strlen(header), 0, "header is damaged", "expected");
        sprintf(header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[],\"data_offsets\":[0,4]}}", names[i]);
        refuse_header(names[i], header, strlen(header), 4, NULL, NULL);
    }
    refuse_header("a zero in a name", "{\"a\0b\":{\"dtype\":\"F32\",\"shape\":[],"
                  "\"data_offsets\":[0,4]}}", 53, 4, "header is damaged", NULL);
    refuse_header("an unfinished string", "{\"a", 3, 0, "header is damaged", NULL);
    refuse_header("an unfinished escape", "{\"a\\", 4, 0, "header is damaged", NULL);
    refuse_header("an unfinished code", "{\"a\\u00", 7, 0, "header is damaged", NULL);
    refuse_header("an unfinished pair", "{\"a\\ud800\\", 10, 0, "header is damaged", NULL);
}

/* JSON so deep or so long that it would end this program if each level took some of the stack. */
static void refuse_deep(const char *what, const char *open, const char *again, const char *close,
                        size_t times)
{
    st_bytes header;
    size_t i;
    memset(&header, 0, sizeof header);
    st_text(&header, open);
    for (i = 0; i < times; i++) st_text(&header, again);
    st_text(&header, close);
    refuse_header(what, (const char *)header.p, header.n, 0, NULL, NULL);
    st_clear(&header);
}

static void test_deep(void)
{
    static const char tensor[] = "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}";
    char both[300];
    refuse_deep("many braces", "", "{", "", 300000);
    refuse_deep("many brackets", "{\"a\":{\"shape\":", "[", "", 300000);
    refuse_deep("objects in objects", "", "{\"a\":", "", 300000);
    refuse_deep("metadata in metadata", "", "{\"__metadata__\":", "", 300000);
    refuse_deep("a long list", "{\"a\":{\"shape\":[1", ",1", "]}}", 300000);
    refuse_deep("a long number", "{\"a\":{\"shape\":[1", "0", "]}}", 300000);
    refuse_deep("a long name", "{\"a", "a", "\":{}}", 300000);
    refuse_deep("a long key", "{\"a\":{\"a", "a", "\":{}}", 300000);
    refuse_deep("metadata over and over", "{\"__metadata__\":{}", ",\"__metadata__\":{}", "}",
                300000);
    sprintf(both, ",%s", tensor);
    refuse_deep("a tensor over and over", "{\"__metadata__\":{}", both, "}", 2000);
}

static void test_config(void)
{
    /* what takes the config's place, and what the sentence must contain */
    static const struct { const char *config, *a, *b; } bad[] = {
        { "", "config", NULL }, { " ", "config", NULL }, { "{", "config", NULL },
        { "}", "config", NULL }, { "[]", "config", NULL }, { "3", "config", NULL },
        { "null", "config", NULL }, { "{}", "input_size", NULL },
        { "{\"input_size\": 3}", "hidden_size", NULL },
        { "{\"hidden_size\": 3}", "input_size", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2,}", "config", "expected" },
        { "{\"input_size\": 3, \"hidden_size\": 2}}", "config", "expected" },
        { "{\"input_size\": 3, \"hidden_size\": 2} x", "config", "expected" },
        { "{\"input_size\": 3 \"hidden_size\": 2}", "config", "expected" },
        { "{input_size: 3, \"hidden_size\": 2}", "config", "expected" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"num_layer\": 2}", "num_layer", "unknown" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"proj_size\": 2}", "proj_size", "unknown" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"\": 2}", "unknown", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"custom_m\": 1}", "custom_m", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"num_layers\": 33}", "num_layers", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"num_layers\": 3}", "rnn_lst.2", "missing" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"num_layers\": 1}", "rnn_lst.1", "unexpected" },
        { "{\"input_size\": 4, \"hidden_size\": 2}", "rnn_lst.0.weight", "(4,8)" },
        { "{\"input_size\": 3, \"hidden_size\": 3}", "rnn_lst.0.weight", "(3,9)" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"bidirectional\": true}", "rnn_lst.0.weight",
          "(3,16)" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"layer_norm\": true}", "layer_norm",
          "missing" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"projection_size\": 1}", "weight_proj",
          "missing" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"has_skip_term\": false}", "rnn_lst.0.weight",
          "(3,6)" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"proj_input_to_hidden_first\": true}",
          "input_to_hidden.weight", "missing" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"rescale\": true}", "scale_x", "rescale" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"rescale\": true, \"highway_bias\": -2}",
          "scale_x", "rescale" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"bidirectional\": 1}", "rnn_lst.0.weight",
          "(3,16)" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"has_skip_term\": 0}", "rnn_lst.0.weight",
          "(3,6)" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"has_skip_term\": null}", "rnn_lst.0.weight",
          "(3,6)" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"bidirectional\": 2}", "config's bidirectional",
          "true or false" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"bidirectional\": 10}", "config", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"bidirectional\": -1}", "config", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"bidirectional\": 1.0}", "config", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"bidirectional\": \"true\"}",
          "config's bidirectional", "true or false" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"bidirectional\": True}",
          "config's bidirectional", "true or false" },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"bidirectional\": trueish}", "config", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"dropout\": 1}", "dropout", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"dropout\": -0.1}", "dropout", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"dropout\": 1e40}", "config", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"rnn_dropout\": 2}", "rnn_dropout", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"highway_bias\": 1000}", "highway_bias", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"weight_c_init\": -1}", "weight_c_init", NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"projection_size\": [1, 2, ]}", "config",
          NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"projection_size\": [1, [2]]}", "config",
          NULL },
        { "{\"input_size\": 3, \"hidden_size\": 2, \"projection_size\": [-1, 2]}", "config", NULL },
        { "{\"input_size\": 2147483647, \"hidden_size\": 2147483647}", NULL, NULL },
        { "{\"input_size\": 1, \"hidden_size\": 2147483647, \"bidirectional\": true, "
          "\"num_layers\": 32}", NULL, NULL },
        { "{\"input_size\": 2147483647, \"hidden_size\": 2}", NULL, NULL },
        { "{\"input_size\": 3, \"hidden_size\": 65536, \"num_layers\": 32}",
          sizeof(size_t) > 4 ? "rnn_lst." : "too large", NULL }
    };
    static const char *const good[] = {
        "", ", \"bidirectional\": 0", ", \"use_tanh\": 1", ", \"v1\": null, \"rescale\": null",
        ", \"has_skip_term\": 1", ", \"projection_size\": null", ", \"highway_bias\": null",
        ", \"amp_recurrence_fp16\": 1", ", \"custom_m\": null, \"num_layers\": null"
    };
    static const struct { const char *module, *name; } others[] = {
        { "SRU", "proj_size" }, { "SRU", "attn_dropout" }, { "SRU", "num_heads" },
        { "SRU", "attn_layer_norm" }, { "SRU", "attention_every_n_layers" },
        { "SRU", "attention_last_n_layers" }, { "SRU", "layer_dropout" }, { "SRU", "scale_x" },
        { "SRU", "causal" }, { "SRU", "window" },
        { "SRUpp", "projection_size" }, { "SRUpp", "rnn_dropout" }, { "SRUpp", "use_tanh" },
        { "SRUpp", "has_skip_term" }, { "SRUpp", "v1" }, { "SRUpp", "amp_recurrence_fp16" },
        { "SRUpp", "custom_m" }, { "SRUpp", "transform_module" }, { "SRUpp", "layer_dropout" },
        { "SRUpp", "scale_x" }, { "SRUpp", "causal" }, { "SRUpp", "window" }
    };
    static const char *const sizes[] = { "input_size", "hidden_size", "num_layers",
                                         "projection_size" };
    static const char *const floats[] = { "dropout", "rnn_dropout", "highway_bias",
                                          "weight_c_init" };
    static const char *const no_floats[] = { "NaN", "nan", "Infinity", "-Infinity", "1e999",
                                             "-1e39", "--1", "+1", ".5", "", "\"0.1\"", "[]",
                                             "true",
                                             "1e", "1e+", "1.", "01", "- 1", "0x1" };
    static const struct { const char *text; float value; } numbers[] = {
        { "0", 0 }, { "-0.5", -0.5f }, { "7", 7 }, { "7e0", 7 }, { "7e1", 70 }, { "0.07e+3", 70 },
        { "-25E1", -250 }, { "25e-1", 2.5f }, { "0e9", 0 }, { "0.0", 0 }, { "1e-45", 1e-45f },
        { "-0.000000000000000000000001e24", -1 }, { "1000000000000000000000e-21", 1 }
    };
    sru_config f = small_config(SRU_ARCH_SRU);
    image *im = network(&f, "");
    char config[6000];
    st_bytes file;
    size_t i, k;
    for (i = 0; i < sizeof bad/sizeof *bad; i++) {
        set_metadata(im, bad[i].config);
        refuse(bad[i].config, im, bad[i].a, bad[i].b, NULL);
    }
    for (i = 0; i < sizeof others/sizeof *others; i++) {    /* arguments of the other module */
        sprintf(im->metadata, "{\"module\":\"%s\",\"config\":\"{\\\"input_size\\\": 3, "
                "\\\"hidden_size\\\": 2, \\\"%s\\\": 1}\"}", others[i].module, others[i].name);
        refuse(others[i].name, im, others[i].name, "unknown", NULL);
    }
    for (i = 0; i < sizeof good/sizeof *good; i++) {
        sprintf(config, "{\"input_size\": 3, \"hidden_size\": 2%s}", good[i]);
        set_metadata(im, config);
        accept(config, im, NULL);
    }
    for (i = 0; i < 4; i++) {
        for (k = 0; k < EXTREMES; k++) {
            const char *other = i == 0 ? "\"hidden_size\": 2" : i == 1 ? "\"input_size\": 3"
                              : "\"input_size\": 3, \"hidden_size\": 2";
            char sentence[SRU_ERROR_SIZE];
            if ((i == 2 && !strcmp(extremes[k], "2")) || (i == 1 && !strcmp(extremes[k], "2"))
                || (i == 2 && !strcmp(extremes[k], "0")) || (i > 1 && !strcmp(extremes[k], "null")))
                continue;               /* it is right, or means the default */
            sprintf(config, "{\"%s\": %s, %s}", sizes[i], extremes[k], other);
            set_metadata(im, config);
            file = image_file(im);
            if (i == 3) {               /* in 2.x, too large a projection counts as none */
                const int size = !strcmp(extremes[k], "0") || atoi(extremes[k]) > 1;
                const int valid = size && strspn(extremes[k], "0123456789") == strlen(extremes[k])
                               && strlen(extremes[k]) < 8 && strcmp(extremes[k], "00")
                               && strcmp(extremes[k], "01");
                const sru_status status = load(file.p, file.n, NULL, 0, NULL, sentence);
                CHECK(valid || strlen(extremes[k]) == 10 || !strcmp(extremes[k], "[]")
                      ? status == SRU_OK || strlen(extremes[k]) == 10 : status == SRU_EFILE,
                      "%s: status %d", config, (int)status);
            } else {
                refuse_bytes(config, &file, NULL, NULL, NULL, NULL);
            }
            st_clear(&file);
        }
        for (k = 0; i < 3 && k < EXTREMES; k++) {
            const char *e = extremes[k];
            if (strspn(e, "0123456789") == strlen(e) || !strcmp(e, "null")) continue;
            sprintf(config, "{\"%s\": %s}", sizes[i], e);
            set_metadata(im, config);
            refuse(config, im, "config", "expected", NULL);
        }
    }
    for (i = 0; i < 4; i++)
        for (k = 0; k < sizeof no_floats/sizeof *no_floats; k++) {
            sprintf(config, "{\"input_size\": 3, \"hidden_size\": 2, \"%s\": %s}", floats[i],
                    no_floats[k]);
            set_metadata(im, config);
            refuse(config, im, "config", "expected", NULL);
        }

    for (k = 0; k < sizeof numbers/sizeof *numbers; k++) {
        char sentence[SRU_ERROR_SIZE];
        sru_model m;
        memset(&m, 0, sizeof m);
        sprintf(config, "{\"input_size\": 3, \"hidden_size\": 2, \"highway_bias\": %s}",
                numbers[k].text);
        set_metadata(im, config);
        file = image_file(im);
        CHECK(sru_load_bytes(&m, NULL, file.p, file.n, NULL, sentence) == SRU_OK
              && !(m.config.highway_bias < numbers[k].value)
              && !(m.config.highway_bias > numbers[k].value), "%s is read as %g: %s",
              numbers[k].text, (double)m.config.highway_bias, sentence);
        st_clear(&file);
    }

    /* padded to any length, it loads as before or is refused, and is never read past its end */
    for (k = 60; k < 5800; k += k > 2030 && k < 2060 ? 1 : 97) {
        char sentence[SRU_ERROR_SIZE];
        sru_status status;
        size_t n = (size_t)sprintf(config, "{\"input_size\": 3, \"hidden_size\": 2");
        while (n + 1 < k) config[n++] = ' ';
        config[n++] = '}';
        config[n] = 0;
        set_metadata(im, config);
        file = image_file(im);
        status = load(file.p, file.n, NULL, 0, NULL, sentence);
        CHECK(k < 2000 ? status == SRU_OK : status == SRU_OK || status == SRU_EFILE,
              "a config of %lu bytes: %s", (unsigned long)k, sentence);
        st_clear(&file);
    }
    /* what is wrong is found, however far behind it is */
    for (k = 1; k < 5000; k += 311) {
        memset(config, ' ', sizeof config);
        memcpy(config, "{\"input_size\": 3, \"hidden_size\": 2}", 35);
        strcpy(config + 35 + k, "x");
        set_metadata(im, config);
        refuse("a config with something behind it", im, "config", NULL, NULL);
    }
    image_free(im);
}

static void test_metadata(void)
{
    static const struct { const char *metadata, *a, *b; } bad[] = {
        { "", "metadata", "module" },
        { "{}", "metadata", "module" },
        { "{\"format\":\"pt\"}", "metadata", "module" },
        { "{\"config\":\"{}\"}", "metadata", "module" },
        { "{\"module\":\"\"}", "metadata", "module" },
        { "{\"module\":\"SRU\"}", "metadata", "no config" },
        { "{\"module\":\"SRU\",\"config\":\"\"}", "no config", NULL },
        { "{\"module\":\"LSTM\",\"config\":\"{}\"}", "LSTM", "SRU" },
        { "{\"module\":\"sru\",\"config\":\"{}\"}", "module", "sru" },
        { "{\"module\":\"SRUp\",\"config\":\"{}\"}", "SRUp", NULL },
        { "{\"module\":\"LSTM\",\"config\":\"{}\"}", "LSTM", "supported" },
        { "{\"module\":\"SR\",\"config\":\"{}\"}", "module", NULL }
    };
    sru_config f = small_config(SRU_ARCH_SRU3);
    image *im = network(&f, "");
    sru_model m;
    st_bytes file, other;
    char error[SRU_ERROR_SIZE];
    size_t i;
    for (i = 0; i < sizeof bad/sizeof *bad; i++) {
        strcpy(im->metadata, bad[i].metadata);
        refuse(bad[i].metadata, im, bad[i].a, bad[i].b, NULL);
    }
    strcpy(im->metadata, "{\"module\":\"");             /* a module of 4000 letters */
    for (i = 0; i < 4000; i++) strcat(im->metadata, "M");
    strcat(im->metadata, "\",\"config\":\"{}\"}");
    refuse("a long module", im, NULL, NULL, NULL);
    strcpy(im->metadata, "{\"module\":\"SRU\",\"config\":\"{\\\"input_size\\\":3,"
           "\\\"hidden_size\\\":2}\"}");
    accept("metadata", im, NULL);
    strcat(im->metadata, ",\"__metadata__\":{\"a\":\"b\"}");
    refuse("metadata twice", im, "__metadata__", NULL, NULL);

    /* if a config is given, metadata are not needed, and it must agree with the file */
    im->metadata[0] = 0;
    file = image_file(im);
    memset(&m, 0, sizeof m);
    m.config = f;
    CHECK(!sru_load_bytes(&m, NULL, file.p, file.n, NULL, error), "no metadata: %s", error);
    CHECK(m.config.input_size == 3 && m.config.hidden_size == 2, "config given");
    m.config.arch = SRU_ARCH_SRU;
    CHECK(!sru_load_bytes(&m, NULL, file.p, file.n, "", error), "no metadata: %s", error);
    CHECK(m.config.arch == SRU_ARCH_SRU3, "arch is that of the file");
    set_metadata(im, "{\"input_size\": 3, \"hidden_size\": 2, \"use_tanh\": true}");
    other = image_file(im);
    m.config.dropout = 0.5f;
    CHECK(!sru_load_bytes(&m, NULL, other.p, other.n, NULL, error), "a config given: %s", error);
    CHECK(!m.config.use_tanh && m.config.dropout == 0.5f, "it counts in place of the metadata");
    st_clear(&other);
    m.config.hidden_size = 3;
    error[0] = 0;
    CHECK(sru_load_bytes(&m, NULL, file.p, file.n, NULL, error) == SRU_EFILE, "another config");
    CHECK(strstr(error, "rnn_lst.0.transform_module.weight") && strstr(error, "(9,3)")
          && strstr(error, "(8,3)"), "%s", error);
    CHECK(m.config.hidden_size == 3, "the config is changed by a failure");
    m.config.hidden_size = 0;
    CHECK(sru_load_bytes(&m, NULL, file.p, file.n, NULL, error) < 0, "a config without units");
    CHECK(strstr(error, "hidden_size") != NULL, "%s", error);
    st_clear(&file);
    image_free(im);
}

static void set_bits(image *im, const piece *p, size_t i, uint32_t bits)
{
    int k;
    for (k = 0; k < 4; k++) im->data.p[p->begin + 4*i + (size_t)k] = (unsigned char)(bits >> 8*k);
}

static void test_scale_x(void)
{
    /* 0, -1, 1, 1.1, 1e30, infinity, NaN */
    static const uint32_t wrong[] = { 0, 0xbf800000, 0x3f800000, 0x3f8ccccd, 0x7149f2ca, 0x7f800000,
                                      0x7fc00000 };
    sru_config f = small_config(SRU_ARCH_SRU);
    image *im, *other;
    size_t i;
    f.rescale = 1;
    f.highway_bias = -1.5f;
    im = network(&f, "");
    accept("with rescale", im, NULL);
    for (i = 0; i < sizeof wrong/sizeof *wrong; i++) {
        other = image_copy(im);
        set_bits(other, image_find(im, "rnn_lst.1.scale_x"), 0, wrong[i]);
        refuse("a wrong scale_x", other, "rnn_lst.1.scale_x", "rescale", NULL);
        image_free(other);
    }
    for (i = 0; i < 2; i++)                 /* a value once rounded to bfloat16 is taken as it is */
        set_bits(im, image_find(im, i ? "rnn_lst.1.scale_x" : "rnn_lst.0.scale_x"), 0, 0x3f9a0000);
    accept("a rounded scale_x", im, NULL);
    {
        st_bytes file = image_file(im);
        sru_model m;
        memset(&m, 0, sizeof m);
        CHECK(!sru_load_bytes(&m, NULL, file.p, file.n, NULL, NULL), "a rounded scale_x");
        CHECK(m.config.scale_x == 1.203125f, "scale_x %g", (double)m.config.scale_x);
        st_clear(&file);
    }
    set_bits(im, image_find(im, "rnn_lst.1.scale_x"), 0, 0x3f9a8000);
    refuse("a scale_x that is rounded otherwise", im, "rnn_lst.1.scale_x", "all layers", NULL);
    image_free(im);
    f.rescale = 0;                          /* up to 2.1.4 of the reference it was the default */
    im = network(&f, "");
    for (i = 0; i < sizeof wrong/sizeof *wrong; i++) {
        other = image_copy(im);
        set_bits(other, image_find(im, "rnn_lst.0.scale_x"), 0, wrong[i]);
        if (wrong[i] == 0x3f800000) accept("a scale_x of 1", other, NULL);
        else refuse("scale_x without rescale", other, "rnn_lst.0.scale_x", "rescale=True", NULL);
        image_free(other);
    }
    image_free(im);
    f.no_skip_term = 1;                     /* it has no effect then */
    for (f.rescale = 0; f.rescale < 2; f.rescale++) {
        im = network(&f, "");
        set_bits(im, image_find(im, "rnn_lst.0.scale_x"), 0, 0x40000000);
        accept("scale_x without a skip term", im, NULL);
        image_free(im);
    }
}

/* ---- prefixes and names ---------------------------------------------------------------------- */

static void test_prefixes(void)
{
    sru_config f = small_config(SRU_ARCH_SRU);
    image *im = network(&f, "encoder."), *other = network(&f, "decoder.rnn.");
    st_bytes file;
    size_t i, at;
    accept("a prefix that is found", im, NULL);
    accept("a prefix that is given", im, "encoder.");
    image_add_floats(im, "embedding.weight", 7, 3, 1);
    image_add_floats(im, "rnn_lst", 1, 0, 1);
    image_add_floats(im, "xrnn_lst.0.weight", 1, 0, 1);
    image_add_floats(im, "rnn_lst_0", 1, 0, 1);
    accept("a prefix that is found among others", im, NULL);
    file = image_file(im);
    refuse_bytes("another prefix", &file, "decoder.", "decoder.rnn_lst.0.weight", "missing", NULL);
    refuse_bytes("no prefix", &file, "", "rnn_lst.0.weight", "missing", NULL);
    refuse_bytes("a prefix without its point", &file, "encoder", "encoderrnn_lst.0.weight",
                 "missing", NULL);
    st_clear(&file);

    at = im->data.n;                        /* two networks in one file */
    st_put(&im->data, other->data.p, other->data.n);
    for (i = 0; i < (size_t)other->n; i++) {
        im->p[im->n] = other->p[i];
        im->p[im->n].begin += at;
        im->p[im->n++].end += at;
    }
    refuse("two networks", im, "'encoder.rnn_lst'", "'decoder.rnn.rnn_lst'", "sru_load_bytes()");
    accept("the first of two", im, "encoder.");
    accept("the second of two", im, "decoder.rnn.");
    image_free(im);
    image_free(other);

    for (i = 0; i < 4; i++) {               /* a prefix that looks like a network's name */
        static const char *const prefix[] = { "rnn_lst.", "rnn_lst.0.", "my_rnn_lst.",
                                              "a.rnn_lst.b." };
        im = network(&f, prefix[i]);
        accept(prefix[i], im, NULL);
        image_free(im);
    }

    im = image_new();
    strcpy(im->metadata, "{\"module\":\"SRU\",\"config\":\"{\\\"input_size\\\":3,"
           "\\\"hidden_size\\\":2}\"}");
    image_add_floats(im, "weight", 3, 2, 1);
    refuse("a file without a network", im, "rnn_lst", NULL, NULL);
    image_free(im);
}

static void test_names(void)
{
    sru_config f = small_config(SRU_ARCH_SRU3);
    size_t n;
    for (n = 1; n < 300; n++) {             /* of a tensor beside the network */
        image *im = network(&f, "net.");
        char name[301], sentence[SRU_ERROR_SIZE];
        st_bytes file;
        sru_status status;
        memset(name, 'n', n);
        name[n] = 0;
        image_add_floats(im, name, 1, 0, 1);
        file = image_file(im);
        status = load(file.p, file.n, NULL, 0, NULL, sentence);
        CHECK(!status, "a name of %lu bytes: status %d: %s", (unsigned long)n, (int)status,
              sentence);
        st_clear(&file);
        image_free(im);
    }
    for (n = 0; n < 200; n++) {             /* before the network's own */
        char prefix[201], sentence[SRU_ERROR_SIZE];
        image *im;
        st_bytes file;
        sru_status found, given;
        memset(prefix, 'p', n);
        prefix[n] = 0;
        if (n) prefix[n - 1] = '.';
        f.projection_size = 1;
        im = network(&f, prefix);
        file = image_file(im);
        found = load(file.p, file.n, NULL, 0, NULL, sentence);
        given = load(file.p, file.n, prefix, 0, NULL, sentence);
        CHECK(found == given && found == (n <= 80 ? SRU_OK : SRU_EFILE),
              "a prefix of %lu bytes: status %d, %d", (unsigned long)n, (int)found, (int)given);
        CHECK(n <= 80 || strstr(sentence, "prefix"), "a prefix of %lu bytes: %s", (unsigned long)n,
              sentence);
        if (n > 80) refuse_bytes("a long prefix", &file, NULL, n <= 120 ? "prefix" : "128", NULL,
                                 NULL);
        st_clear(&file);
        image_free(im);
    }
    {
        static const char *const long_prefix =
            "a prefix that is longer than any name can be, and which goes on and on, and on, and "
            "on, and on, and on, and on, and on, and on, and on, and on, and on, and on, and on, "
            "and on, and on, and on, and on, and on, and on, and on, and on, and on, and on, and";
        image *im = network(&f, "");
        st_bytes file = image_file(im);
        refuse_bytes("a long prefix", &file, long_prefix, "prefix", NULL, NULL);
        st_clear(&file);
        image_free(im);
    }
}

/* Whatever lies beside the network is left alone, even if it is of no use here. */
static void test_others(void)
{
    enum { OTHERS = 20000 };
    sru_config f = small_config(SRU_ARCH_SRU3);
    image *good = network(&f, "net."), *im;
    st_bytes header, file;
    sru_tensor t;
    piece *p;
    char name[301], error[SRU_ERROR_SIZE] = "";
    float value = 0;
    int i;

    im = image_copy(good);
    image_add(im, "complex", "C64", 2, 0);
    im->p[im->n - 1].end = im->p[im->n - 1].begin + 16;
    image_add(im, "nothing of a type with a long name", "F4_E2M1_and_more_than_that", 0, 0);
    p = image_add_floats(im, "nine dimensions", 6, 0, 1);
    p->rank = 9;
    for (i = 1; i < 9; i++) p->shape[i] = 1;
    image_add_floats(im, "twice", 1, 0, 1);
    image_add_floats(im, "twice", 1, 0, 1);
    memset(name, 'n', 300);
    name[300] = 0;
    image_add_floats(im, name, 1, 0, 1);                /* these two are alike for 299 bytes */
    name[299] = 'm';
    image_add_floats(im, name, 1, 0, 1);
    name[127] = 0;
    image_add_floats(im, name, 1, 0, 1);                /* as is this, which can be read */
    p = image_add_floats(im, name, 1, 0, 1);
    p->name[127] = 'n';
    for (i = 0; i < 3; i++) {       /* of 127, 126 and 125 bytes, and a character that is longer */
        static const char *const more[] = { "\\u00e9", "\\u20ac", "\\ud83d\\ude00" };
        memset(name, 'q', 127);
        strcpy(name + 127 - i, more[i]);
        image_add_floats(im, name, 1, 0, 1);
    }
    p = image_add(im, "empty", "F4_E2M1", 2, 0);
    p->rank = 2;
    p->end = p->begin;
    for (i = 0; i < 16; i++) st_put(&im->data, "", 1);  /* of the complex numbers */
    for (i = im->n - 1; strcmp(im->p[i].name, "complex"); i--) {
        im->p[i].begin += 16;
        im->p[i].end += 16;
    }
    memset(name, 'k', 300);
    sprintf(im->metadata + strlen(im->metadata) - 1, ",\"%.300s\":\"%.300s\"}", name, name);
    accept("strange tensors beside the network", im, NULL);
    file = image_file(im);
    memset(&t, 0, sizeof t);
    memset(t.name, 'n', 127);
    CHECK(!sru_read_tensor(&t, file.p, file.n, error), "%s", error);
    CHECK(t.shape[0] == 1, "a tensor with a name of 127 bytes");
    t.data = &value;
    for (i = 0; i < 3; i++) {
        memset(t.name, 'q', 127);
        t.name[127 - i] = 0;
        CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_ENOENT, "%d bytes of a longer name",
              127 - i);
    }
    strcpy(t.name, "empty");
    t.data = NULL;
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "what is empty has a shape");
    t.data = &value;
    strcpy(t.name, "complex");
    t.shape[0] = 2;
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "complex numbers are read");
    CHECK(strstr(error, "complex") && strstr(error, "C64"), "%s", error);
    strcpy(t.name, "nine dimensions");
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "nine dimensions are read");
    CHECK(strstr(error, "nine") && strstr(error, "(6,1,1,1,1,1,1,1,...)"), "%s", error);
    strcpy(t.name, "twice");
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "which of two?");
    CHECK(strstr(error, "two tensors") && strstr(error, "twice"), "%s", error);
    st_clear(&file);
    image_free(im);

    for (i = 0; i < 2; i++) {                           /* they must lie within the file, too */
        im = image_copy(good);
        image_add(im, "complex", "C128", 1, 0);
        im->p[im->n - 1].begin -= i ? 4u : 0;
        im->p[im->n - 1].end = im->p[im->n - 1].begin + 8;
        refuse("complex numbers of other bytes", im, "bytes of data", NULL, NULL);
        image_free(im);
    }

    header = image_header(good);                        /* the network among many others */
    header.n--;
    for (i = 0; i < OTHERS; i++) {
        char text[200];
        sprintf(text, ",\"layers.%d.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":"
                "[%lu,%lu]}", i, (unsigned long)good->data.n, (unsigned long)good->data.n + 4);
        st_text(&header, text);
        st_float(&good->data, 1);
    }
    st_text(&header, "}");
    memset(&file, 0, sizeof file);
    st_file_of(&file, header.p, header.n, &good->data);
    CHECK(header.n > 1 << 20, "the header has %lu bytes", (unsigned long)header.n);
    accept_bytes("the network among many others", &file, NULL);
    st_clear(&file);
    st_clear(&header);
    image_free(good);
}

/* The same name in another spelling; characters beyond ASCII; spaces anywhere; any order. */
static void test_spellings(void)
{
    static const struct { const char *escaped, *name; } spelled[] = {
        { "\\u0061", "a" }, { "\\\"", "\"" }, { "\\\\", "\\" }, { "\\/", "/" }, { "\\b", "\b" },
        { "\\f", "\f" }, { "\\n", "\n" }, { "\\r", "\r" }, { "\\t", "\t" }, { "\\u001f", "\x1f" },
        { "\\u007f", "\x7f" }, { "\x7f", "\x7f" }, { "\\u0080", "\xc2\x80" },
        { "\\u00e9\\u00E9", "\xc3\xa9\xc3\xa9" }, { "\xc3\xa9", "\xc3\xa9" },
        { "\\u07ff", "\xdf\xbf" }, { "\\u0800", "\xe0\xa0\x80" }, { "\\u20ac", "\xe2\x82\xac" },
        { "\\ud7ff", "\xed\x9f\xbf" }, { "\\ue000", "\xee\x80\x80" }, { "\\uffff", "\xef\xbf\xbf" },
        { "\\ud800\\udc00", "\xf0\x90\x80\x80" }, { "\\uD83D\\uDe00", "\xf0\x9f\x98\x80" },
        { "\\udbff\\udfff", "\xf4\x8f\xbf\xbf" }, { "{\\\"}[],:", "{\"}[],:" },
        { "\\u0000", "\xef\xbf\xbd" }, { "a\\u0000b", "a\xef\xbf\xbd" "b" }, { "", "" },
        { "__metadata", "__metadata" }, { "a.b/c d%s%n", "a.b/c d%s%n" }
    };
    sru_config f = small_config(SRU_ARCH_SRU);
    size_t i;
    for (i = 0; i < sizeof spelled/sizeof *spelled; i++) {
        image *im = network(&f, "");
        st_bytes file;
        sru_tensor t;
        float value = 0;
        char name[64], error[SRU_ERROR_SIZE] = "";
        int k;
        for (k = 0; k < im->n; k++) {       /* as a prefix of the network */
            char with[600];
            sprintf(with, "%s.%.500s", spelled[i].escaped, im->p[k].name);
            strcpy(im->p[k].name, with);
        }
        image_add_floats(im, spelled[i].escaped, 1, 0, 1);
        file = image_file(im);
        accept_bytes(spelled[i].escaped, &file, NULL);
        sprintf(name, "%s.", spelled[i].name);
        accept_bytes(spelled[i].escaped, &file, name);
        memset(&t, 0, sizeof t);
        strcpy(t.name, spelled[i].name);
        t.shape[0] = 1;
        t.data = &value;
        CHECK(!sru_read_tensor(&t, file.p, file.n, error), "%s: %s", spelled[i].escaped, error);
        st_clear(&file);
        image_free(im);
    }
    {
        image *im = network(&f, "");
        st_bytes header = image_header(im), spaced, file;
        int inside = 0;
        memset(&spaced, 0, sizeof spaced);
        memset(&file, 0, sizeof file);
        for (i = 0; i < header.n; i++) {
            const char c = (char)header.p[i];
            const int digit = c >= '0' && c <= '9', before = i && header.p[i - 1] >= '0'
                                                         && header.p[i - 1] <= '9';
            if (!inside && !(digit && before)) st_text(&spaced, i % 3 ? " \t" : "\r\n ");
            if (c == '"' && header.p[i - 1] != '\\') inside = !inside;
            st_put(&spaced, &c, 1);
        }
        st_text(&spaced, "\n");
        st_file_of(&file, spaced.p, spaced.n, &im->data);
        accept_bytes("spaces everywhere", &file, NULL);
        st_clear(&spaced);
        st_clear(&header);
        st_clear(&file);
        image_free(im);
    }
}

static void test_orders(void)
{
    static const int order[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 },
                                     { 2, 0, 1 }, { 2, 1, 0 } };
    sru_config f = small_config(SRU_ARCH_SRU);
    image *im = network(&f, "");
    int at, i, k, o;
    for (o = 0; o < 6; o++) {
        for (at = -1; at <= im->n; at += 3) {           /* the metadata first, amidst, and last */
            st_bytes header, file;
            memset(&header, 0, sizeof header);
            memset(&file, 0, sizeof file);
            st_text(&header, "{");
            for (i = 0; i <= im->n; i++) {
                const piece *p = &im->p[(i*5 + o) % im->n];     /* not in the data's order */
                const int last = i == im->n;
                char text[3][300];
                size_t d;
                if (i == (at < 0 ? 0 : at)) {
                    st_text(&header, i && last ? ",\"__metadata__\":" : "\"__metadata__\":");
                    st_text(&header, im->metadata);
                    if (!last) st_text(&header, ",");
                }
                if (last) break;
                sprintf(text[0], "\"dtype\":\"%s\"", p->dtype);
                strcpy(text[1], "\"shape\":[");
                for (d = 0; d < p->rank; d++)
                    sprintf(text[1] + strlen(text[1]), d ? ",%lu" : "%lu",
                            (unsigned long)p->shape[d]);
                strcat(text[1], "]");
                sprintf(text[2], "\"data_offsets\":[%lu,%lu]", (unsigned long)p->begin,
                        (unsigned long)p->end);
                st_text(&header, "\"");
                st_text(&header, p->name);
                st_text(&header, "\":{");
                for (k = 0; k < 3; k++) {
                    st_text(&header, text[order[o][k]]);
                    st_text(&header, k < 2 ? "," : "}");
                }
                if (i + 1 < im->n) st_text(&header, ",");
            }
            st_text(&header, "}");
            st_file_of(&file, header.p, header.n, &im->data);
            accept_bytes("in another order", &file, NULL);      /* 5 and 8 have no divisor */
            st_clear(&header);
            st_clear(&file);
        }
    }
    image_free(im);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Conversion by integers alone, so that no mode of the processor or compiler flag matters. */
static uint32_t half_to_single(uint32_t h)
{
    const uint32_t sign = (h & 0x8000) << 16;
    uint32_t e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return sign | 0x7f800000 | m << 13;
    if (!e) {
        if (!m) return sign;
        for (e = 1; !(m & 1024); e--) m <<= 1;
        m &= 1023;
    }
    return sign | (e + 112) << 23 | m << 13;
}

/* To nearest, ties to even. */
static uint32_t double_to_single(uint64_t d)
{
    const uint32_t sign = (uint32_t)(d >> 32) & 0x80000000;
    const int e = (int)(d >> 52 & 2047);
    uint64_t m = d & UINT64_C(0xfffffffffffff), rest, half;
    int shift = 29;
    if (e == 2047) return sign | 0x7f800000 | (m ? 0x400000 : 0);
    if (e < 800) return sign;                           /* far below the least subnormal */
    m |= UINT64_C(1) << 52;
    if (e < 897) shift += 897 - e;                      /* 897 is the exponent of 2^-126 */
    if (shift > 62) return sign;
    rest = m & ((UINT64_C(1) << shift) - 1);
    half = UINT64_C(1) << (shift - 1);
    m >>= shift;
    if (rest > half || (rest == half && (m & 1))) m++;
    if (e >= 897) m += (uint64_t)(e - 897) << 23;       /* the leading one adds one more */
    return m >= 0x7f800000 ? sign | 0x7f800000 : sign | (uint32_t)m;
}

static int is_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

/* n values of a type, read at an odd address. */
static void read_values(const char *dtype, const st_bytes *data, float *values, size_t n)
{
    image *im = image_new();
    st_bytes file;
    unsigned char *odd;
    sru_tensor t;
    char error[SRU_ERROR_SIZE] = "";
    image_add(im, "t", dtype, n, 0);
    st_put(&im->data, data->p, data->n);
    file = image_file(im);
    odd = (unsigned char *)test_alloc(file.n + 1);
    memcpy(odd + 1, file.p, file.n);
    memset(&t, 0, sizeof t);
    strcpy(t.name, "t");
    CHECK(!sru_read_tensor(&t, odd + 1, file.n, error), "%s: %s", dtype, error);
    CHECK(t.shape[0] == n && !t.shape[1], "%s: shape %lu", dtype, (unsigned long)t.shape[0]);
    t.data = values;
    CHECK(!sru_read_tensor(&t, odd + 1, file.n, error), "%s: %s", dtype, error);
    free(odd);
    st_clear(&file);
    image_free(im);
}

static void check_values(const char *dtype, const float *is, const uint32_t *should, size_t n)
{
    size_t i, wrong = 0;
    for (i = 0; i < n; i++) {
        const uint32_t bits = test_to_bits(is[i]);
        int same = is_nan(should[i]) ? is_nan(bits) : bits == should[i];
#ifdef __FAST_MATH__
        /* such a program may flush to zero what would round up to the least normal number */
        if ((should[i] & 0x7fffffff) <= 0x800000 && !(bits & 0x7fffffff)) same = 1;
#endif
        if (!same && !wrong++)
            CHECK(0, "%s: value %lu is %08lx, not %08lx", dtype, (unsigned long)i,
                  (unsigned long)bits, (unsigned long)should[i]);
    }
    CHECK(!wrong, "%s: %lu of %lu values are wrong", dtype, (unsigned long)wrong, (unsigned long)n);
}

static void test_types(void)
{
    enum { N = 65536 };
    static const uint32_t singles[] = {
        0, 0x80000000, 1, 0x80000001, 0x7fffff, 0x800000, 0x3f800000, 0xbf800000, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0x7fffffff
    };
    static const double doubles[] = { 0, 1, -1, 0.1, 1.0/3, 16777217, 16777219, 1e300,
                                      -1e300, 1e-300 };
    float *values = test_floats(N);
    uint32_t *should = (uint32_t *)test_alloc(N*sizeof *should);
    st_bytes data;
    size_t i, n;
    memset(&data, 0, sizeof data);

    for (i = 0; i < N; i++) {
        st_little(&data, i, 2);
        should[i] = half_to_single((uint32_t)i);
    }
    read_values("F16", &data, values, N);
    check_values("F16", values, should, N);
    for (i = 0; i < N; i++) should[i] = (uint32_t)i << 16;
    read_values("BF16", &data, values, N);
    check_values("BF16", values, should, N);
    st_clear(&data);

    for (i = 0; i < N; i++) {
        should[i] = i < sizeof singles/sizeof *singles ? singles[i] : (uint32_t)test_bits();
        st_little(&data, should[i], 4);
    }
    read_values("F32", &data, values, N);
    check_values("F32", values, should, N);
    st_clear(&data);

    for (i = n = 0; i < sizeof doubles/sizeof *doubles; i++) {
        uint64_t bits;
        memcpy(&bits, &doubles[i], 8);
        st_little(&data, bits, 8);
        should[n++] = double_to_single(bits);
    }
    for (; n < N; n++) {
        uint64_t bits = test_bits();
        if (n % 4) {                /* an exponent that a float can have, or nearly */
            bits &= ~(UINT64_C(2047) << 52);
            bits |= (uint64_t)(860 + test_bits() % 300) << 52;
        }
        if (n % 8 == 1) bits &= ~((UINT64_C(1) << 29) - 1);                         /* exact */
        if (n % 8 == 2) bits = (bits & ~((UINT64_C(1) << 29) - 1)) | 1u << 28;      /* a tie */
        if (n % 8 == 3) bits = (bits & ~((UINT64_C(1) << 29) - 1)) | ((1u << 28) + 1);
        if (n % 8 == 5) bits |= UINT64_C(0xfffffe0000000);                          /* carries */
        if (n % 64 == 6) bits = (bits & ~(UINT64_C(2047) << 52)) | UINT64_C(2047) << 52;
        if (n % 64 == 14) bits = (bits & UINT64_C(1) << 63) | UINT64_C(2047) << 52; /* infinity */
        if (n % 64 == 22) bits &= ~(UINT64_C(2047) << 52);                          /* subnormal */
        st_little(&data, bits, 8);
        should[n] = double_to_single(bits);
    }
    read_values("F64", &data, values, N);
    check_values("F64", values, should, N);
    st_clear(&data);

    for (i = 0; i < 256; i++) {
        st_little(&data, i, 1);
        should[i] = test_to_bits((float)i);
    }
    read_values("U8", &data, values, 256);
    check_values("U8", values, should, 256);
    for (i = 0; i < 256; i++) should[i] = test_to_bits(i < 128 ? (float)i : (float)i - 256);
    read_values("I8", &data, values, 256);
    check_values("I8", values, should, 256);
    data.n = 2;
    read_values("BOOL", &data, values, 2);
    CHECK(values[0] == 0 && values[1] == 1, "BOOL: %g, %g", (double)values[0], (double)values[1]);
    st_clear(&data);
    free(values);
    free(should);
}

static void test_read_tensor(void)
{
    image *im = image_new(), *bad;
    st_bytes file;
    sru_tensor t;
    float values[24], scalar = 0;
    char error[SRU_ERROR_SIZE] = "";
    piece *p;
    size_t i;
    image_add_floats(im, "matrix", 4, 6, 1);
    p = image_add_floats(im, "scalar", 1, 0, 1);
    p->rank = 0;
    p = image_add_floats(im, "four", 24, 0, 1);
    p->rank = 4;
    p->shape[0] = 1;
    p->shape[1] = 2;
    p->shape[2] = 3;
    p->shape[3] = 4;
    p = image_add_floats(im, "five", 2, 0, 1);
    p->rank = 5;
    p->shape[0] = 2;
    for (i = 1; i < 5; i++) p->shape[i] = 1;
    image_add(im, "empty", "F32", 0, 0);
    p = image_add(im, "empty matrix", "F64", 0, 0);
    p->rank = 2;
    p->shape[0] = 3;
    image_add(im, "whole", "I64", 2, 0);
    for (i = 0; i < 16; i++) st_put(&im->data, "", 1);
    file = image_file(im);

    memset(&t, 0, sizeof t);
    strcpy(t.name, "matrix");
    CHECK(!sru_read_tensor(&t, file.p, file.n, error), "%s", error);
    CHECK(t.shape[0] == 4 && t.shape[1] == 6 && !t.shape[2] && !t.shape[3], "the shape is told");
    t.data = values;
    CHECK(!sru_read_tensor(&t, file.p, file.n, error), "%s", error);
    for (i = 0; i < 24; i++) {
        st_entry e;
        memset(&e, 0, sizeof e);
        e.data = im->data.p;
        CHECK(test_to_bits(values[i]) == test_to_bits(st_value(&e, i)),
              "value %lu", (unsigned long)i);
    }
    {                               /* reordered: (4,6), interleaved by 2; transposed, by 3 */
        float reordered[24];
        size_t r, c;
        t.data = reordered;
        t.interleave = 2;
        CHECK(!sru_read_tensor(&t, file.p, file.n, error), "%s", error);
        for (r = 0; r < 4; r++)
            for (c = 0; c < 6; c++) {
                float value = values[(r % 2*2 + r/2)*6 + c];
                CHECK(test_to_bits(reordered[r*6 + c]) == test_to_bits(value),
                      "interleaved: row %lu", (unsigned long)r);
            }
        t.interleave = 3;
        t.transpose = 1;
        CHECK(!sru_read_tensor(&t, file.p, file.n, error), "%s", error);
        for (r = 0; r < 6; r++)
            for (c = 0; c < 4; c++)
                CHECK(test_to_bits(reordered[r*4 + c]) == test_to_bits(values[c*6 + r % 2*3 + r/2]),
                      "interleaved and transposed: row %lu", (unsigned long)r);
        t.interleave = 4;
        CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EINVAL, "4 do not go into 6");
        t.interleave = -1;
        CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EINVAL, "a negative interleave");
        t.interleave = t.transpose = 0;
    }
    t.data = values;
    t.shape[1] = 5;
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "another shape");
    CHECK(strstr(error, "matrix") && strstr(error, "(4,5)") && strstr(error, "(4,6)"), "%s", error);
    t.shape[1] = 0;
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "another rank");
    CHECK(strstr(error, "(4)") && strstr(error, "(4,6)"), "%s", error);

    memset(&t, 0, sizeof t);
    strcpy(t.name, "scalar");
    CHECK(!sru_read_tensor(&t, file.p, file.n, error) && !t.shape[0], "a scalar: %s", error);
    t.data = &scalar;
    CHECK(!sru_read_tensor(&t, file.p, file.n, error), "a scalar: %s", error);
    {
        st_entry e;
        e.data = im->data.p + image_find(im, "scalar")->begin;
        CHECK(test_to_bits(scalar) == test_to_bits(st_value(&e, 0)),
              "a scalar is %g", (double)scalar);
    }
    memset(&t, 0, sizeof t);
    strcpy(t.name, "four");
    CHECK(!sru_read_tensor(&t, file.p, file.n, error), "%s", error);
    CHECK(t.shape[0] == 1 && t.shape[1] == 2 && t.shape[2] == 3 && t.shape[3] == 4, "four");
    t.data = values;
    CHECK(!sru_read_tensor(&t, file.p, file.n, error), "%s", error);
    strcpy(t.name, "matrix");
    t.data = NULL;
    CHECK(!sru_read_tensor(&t, file.p, file.n, error), "%s", error);
    CHECK(t.shape[0] == 4 && t.shape[1] == 6 && !t.shape[2] && !t.shape[3], "two after four");
    memset(&t, 0, sizeof t);
    strcpy(t.name, "five");
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "five dimensions");
    CHECK(strstr(error, "five") != NULL, "%s", error);
    strcpy(t.name, "empty");
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "an empty tensor");
    CHECK(strstr(error, "empty") != NULL, "%s", error);
    strcpy(t.name, "whole");
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE && strstr(error, "I64"),
          "the shape of what cannot be read");
    t.shape[0] = 2;
    t.data = values;
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "whole numbers of 64 bits");
    CHECK(strstr(error, "whole") && strstr(error, "I64"), "%s", error);
    strcpy(t.name, "nobody");
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_ENOENT, "a tensor that is not there");
    CHECK(strstr(error, "nobody") != NULL, "%s", error);
    t.name[0] = 0;
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_ENOENT, "an empty name");
    strcpy(t.name, "__metadata__");
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_ENOENT, "the metadata");
    CHECK(sru_read_tensor(&t, file.p, file.n - 1, error) == SRU_EFILE, "cut short");
    CHECK(sru_read_tensor(&t, file.p, file.n - 1, NULL) == SRU_EFILE, "cut short, no sentence");
    CHECK(sru_read_tensor(&t, "\2\0\0\0\0\0\0\0{}", 10, error) == SRU_ENOENT, "%s", error);
    CHECK(sru_read_tensor(NULL, file.p, file.n, error) == SRU_EINVAL, "no tensor");
    CHECK(sru_read_tensor(&t, NULL, file.n, error) == SRU_EINVAL, "no file");
    memset(t.name, 'n', sizeof t.name);
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EINVAL, "a name without an end");
    bad = image_copy(im);
    bad->p[0].end++;
    st_clear(&file);
    file = image_file(bad);
    strcpy(t.name, "four");
    CHECK(sru_read_tensor(&t, file.p, file.n, error) == SRU_EFILE, "another tensor is at fault");
    CHECK(strstr(error, "matrix") != NULL, "%s", error);
    image_free(bad);
    image_free(im);
    st_clear(&file);
    for (i = 0; i < ST_DTYPES; i++) {
        const char *type = st_dtypes[i].name;
        const int reads = strstr("F64 F32 F16 BF16 I8 U8 BOOL", type) != NULL;
        im = image_new();
        image_add(im, "of a type", type, 1, 0);
        st_put(&im->data, "\0\0\0\0\0\0\0", st_dtypes[i].bytes);
        file = image_file(im);
        memset(&t, 0, sizeof t);
        strcpy(t.name, "of a type");
        t.shape[0] = 1;
        t.data = values;
        CHECK(sru_read_tensor(&t, file.p, file.n, error) == (reads ? SRU_OK : SRU_EFILE),
              "a tensor of the type %s: %s", type, error);
        image_free(im);
        st_clear(&file);
    }
}

/* ---- networks that load ---------------------------------------------------------------------- */

/* What a tensor of the loaded network should be: value (row, col) of an image's tensor. */
static float image_value(const image *im, const piece *p, size_t i)
{
    st_entry e;
    memset(&e, 0, sizeof e);
    e.data = im->data.p + p->begin;
    return st_value(&e, i);
}

static sru_config random_config(void)
{
    sru_config f;
    int l;
    memset(&f, 0, sizeof f);
    f.arch = (sru_arch)(test_bits() % 2);
    f.input_size = 1 + (int)(test_bits() % 9);
    f.hidden_size = 1 + (int)(test_bits() % 9);
    f.num_layers = 1 + (int)(test_bits() % 4);
    f.bidirectional = (int)(test_bits() % 2);
    if (test_bits() % 3 == 0) f.projection_size = 1 + (int)(test_bits() % 5);
    else if (f.arch == SRU_ARCH_SRU3 && test_bits() % 2)
        for (l = 0; l < f.num_layers; l++) f.projection_sizes[l] = (int)(test_bits() % 5);
    f.layer_norm = (int)(test_bits() % 2);
    f.normalize_after = (int)(test_bits() % 2);
    f.use_tanh = (int)(test_bits() % 2);
    f.no_skip_term = (int)(test_bits() % 2);
    f.rescale = (int)(test_bits() % 2);
    f.v1 = (int)(test_bits() % 2);
    f.proj_input_to_hidden_first = (int)(test_bits() % 2);
    f.nn_rnn_compatible_return = (int)(test_bits() % 2);
    f.highway_bias = (float)(3*test_random());
    f.weight_c_init = test_bits() % 2 ? (float)fabs(test_random()) : 0;
    f.dropout = test_bits() % 2 ? (float)(0.9*fabs(test_random())) : 0;
    f.rnn_dropout = test_bits() % 2 ? (float)(0.9*fabs(test_random())) : 0;
    return f;
}

static void check_config(const char *what, const sru_config *is, const sru_config *should)
{
    int l;
#define SAME(field, format) \
    CHECK(is->field == should->field, "%s: %s is " format ", not " format, what, #field, \
          is->field, should->field)
#define SAME_FLOAT(field) \
    CHECK(is->field == should->field, "%s: %s is %.9g, not %.9g", what, #field, \
          (double)is->field, (double)should->field)
    SAME(input_size, "%d");
    SAME(hidden_size, "%d");
    CHECK(naive_layers(is) == naive_layers(should), "%s: %d layers, not %d", what,
          naive_layers(is), naive_layers(should));
    CHECK(is->arch == should->arch, "%s: arch is %d", what, (int)is->arch);
    SAME(bidirectional, "%d");
    SAME(layer_norm, "%d");
    SAME(normalize_after, "%d");
    SAME(use_tanh, "%d");
    SAME(no_skip_term, "%d");
    SAME(rescale, "%d");
    SAME(v1, "%d");
    SAME(proj_input_to_hidden_first, "%d");
    SAME(nn_rnn_compatible_return, "%d");
    SAME_FLOAT(highway_bias);
    SAME_FLOAT(weight_c_init);
    SAME_FLOAT(dropout);
    SAME_FLOAT(rnn_dropout);
    SAME_FLOAT(layer_dropout);
#undef SAME
#undef SAME_FLOAT
    for (l = 0; l < naive_layers(should); l++) {
        const int a = is->projection_sizes[l] ? is->projection_sizes[l] : is->projection_size;
        const int b = should->projection_sizes[l] ? should->projection_sizes[l]
                                                  : should->projection_size;
        CHECK(a == b, "%s: projection_size of layer %d is %d, not %d", what, l, a, b);
    }
}

static int ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* 1 if bits differ; in 32-bit code, without the bit with which registers make a NaN quiet. */
static size_t differ(float a, float b)
{
    const uint32_t x = test_to_bits(a), y = test_to_bits(b), quiet = 0x400000;
    if (sizeof(size_t) > 4 || test_finite(&a) || !(x & (quiet - 1))) return x != y;
    return (x | quiet) != (y | quiet);
}

/* Compares each tensor of the weights with that of the image, in which the grouped matrix has the
   reference's order: matrix k of unit u is column, or row, u*K + k. */
static void check_weights(const char *what, const sru_model *m, image *im, const char *prefix)
{
    const sru_config *f = &m->config;
    const size_t N = naive_width(f);
    sru_tensor t;
    int i, tensors = 0, l;
    for (i = 0; sru_get_tensor(&t, m, i); i++, tensors++) {
        char name[700];
        const piece *p;
        size_t r, c, rows, cols, K, wrong = 0;
        int transposed, grouped;
        sprintf(name, "%.500s%s", prefix, t.name);
        p = image_find(im, name);
        if (!CHECK(p != NULL, "%s: the image has no '%s'", what, name)) continue;
        CHECK(t.shape[0] == p->shape[0] && t.shape[1] == (p->rank > 1 ? p->shape[1] : 0)
              && !t.shape[2], "%s: '%s' has the shape (%lu,%lu)", what, name,
              (unsigned long)t.shape[0], (unsigned long)t.shape[1]);
        transposed = p->rank == 2 && f->arch == SRU_ARCH_SRU
                  && !strstr(name, "input_to_hidden");
        grouped = (p->rank == 2 && f->arch == SRU_ARCH_SRU && ends_in(name, ".weight")
                   && !strstr(name, "input_to_hidden"))
               || ends_in(name, "transform_module.weight")
               || ends_in(name, "transform_module.1.weight");
        rows = p->shape[transposed ? 1 : 0];
        cols = p->rank < 2 ? 1 : p->shape[transposed ? 0 : 1];
        K = grouped ? rows/N : 0;
        CHECK((size_t)t.interleave == K && t.transpose == transposed,
              "%s: '%s': interleave %d, transpose %d", what, name, t.interleave, t.transpose);
        for (r = 0; r < rows; r++)
            for (c = 0; c < cols; c++) {
                const size_t row = grouped ? r % N*K + r/N : r;
                const size_t at = transposed ? c*rows + row : row*cols + c;
                wrong += differ(t.data[r*cols + c], image_value(im, p, at));
            }
        CHECK(!wrong, "%s: '%s': %lu values are wrong", what, name, (unsigned long)wrong);
    }
    for (l = i = 0; i < im->n; i++)
        l += !strncmp(im->p[i].name, prefix, strlen(prefix)) && strstr(im->p[i].name, "scale_x")
             == NULL;
    CHECK(l == tensors, "%s: %d tensors, not %d", what, tensors, l);
}

static void test_networks(void)
{
    static const char *const prefixes[] = { "", "rnn.", "encoder.layers.0.", "\xc3\xa9." };
    int round;
    for (round = 0; round < 150; round++) {
        const char *prefix = prefixes[round % 4];
        sru_config f = random_config();
        image *im = network(&f, prefix);
        st_bytes file = image_file(im);
        char what[32], sentence[SRU_ERROR_SIZE];
        sru_model m, packed;
        unsigned char *block = (unsigned char *)test_alloc(file.n + 8);
        const size_t size = weights_size(&f, SRU_PLAIN), offset = test_bits() % 8;
        void *weights = test_alloc(size);
        int type;
        sprintf(what, "network %d", round);
        CHECK(!load(file.p, file.n, round % 2 ? prefix : NULL, offset, &m, sentence), "%s: %s",
              what, sentence);
        check_config(what, &m.config, &f);
        memcpy(block + offset, file.p, file.n);
        memset(&m, 0, sizeof m);
        CHECK(!sru_load_bytes(&m, weights, block + offset, file.n, NULL, sentence), "%s: %s", what,
              sentence);
        check_weights(what, &m, im, prefix);
        for (type = SRU_F32; type <= SRU_Q8; type++) {      /* packed on the way in, or later */
            void *a, *b;
            memset(&packed, 0, sizeof packed);
            packed.type = (sru_type)type;
            a = test_alloc(weights_size(&f, (sru_type)type));
            b = test_alloc(weights_size(&f, (sru_type)type));
            memset(a, 0x55, weights_size(&f, (sru_type)type));  /* each byte must be written */
            memset(b, 0xaa, weights_size(&f, (sru_type)type));
            CHECK(!sru_load_bytes(&packed, a, block + offset, file.n, prefix, sentence),
                  "%s: type %d: %s", what, type, sentence);
            check_config(what, &packed.config, &f);
            CHECK(!sru_pack(NULL, &packed, b, &m), "%s: type %d: sru_pack()", what, type);
            CHECK(!memcmp(a, b, weights_size(&f, (sru_type)type)),
                  "%s: loaded as type %d, and packed: other bytes", what, type);
            free(a);
            free(b);
        }
        free(block);
        free(weights);
        st_clear(&file);
        image_free(im);
    }
}

/* The half precision number nearest to x, from 1 to 60000. */
static uint32_t nearest_half(float x)
{
    uint32_t h = 0x3c00;
    while (h < 0x7bff && fabs((double)test_from_bits(half_to_single(h + 1)) - (double)x)
                         <= fabs((double)test_from_bits(half_to_single(h)) - (double)x)) h++;
    return h;
}

/* Weights stored as other types load with the values of these types. scale_x is rounded, too. */
static void test_types_of_weights(void)
{
    static const char *const types[] = { "F16", "BF16", "F64" };
    int round;
    for (round = 0; round < 60; round++) {
        const char *type = types[round % 3];
        sru_config f = random_config();
        image *im = network(&f, ""), *other = image_new();
        st_bytes file;
        sru_model m;
        void *weights = test_alloc(weights_size(&f, SRU_PLAIN));
        char error[SRU_ERROR_SIZE] = "";
        int i;
        strcpy(other->metadata, im->metadata);
        for (i = 0; i < im->n; i++) {
            const piece *p = &im->p[i];
            const int scale = ends_in(p->name, "scale_x");
            size_t j;
            image_add(other, p->name, type, p->shape[0], p->rank > 1 ? p->shape[1] : 0);
            for (j = 0; j < (p->end - p->begin)/4; j++) {
                const float x = image_value(im, p, j);
                if (round % 3 == 0) {
                    const uint32_t h = scale ? nearest_half(x) : (uint32_t)test_bits() & 0xffff;
                    st_little(&other->data, h, 2);
                    set_bits(im, p, j, half_to_single(h));
                } else if (round % 3 == 1) {
                    const uint32_t b = (test_to_bits(x) + 0x8000) >> 16;
                    st_little(&other->data, b, 2);
                    set_bits(im, p, j, b << 16);
                } else {
                    const double d = (double)x*1.0000000001;
                    uint64_t bits;
                    memcpy(&bits, &d, 8);
                    st_little(&other->data, bits, 8);
                    set_bits(im, p, j, double_to_single(bits));
                }
            }
        }
        file = image_file(other);
        memset(&m, 0, sizeof m);
        if (CHECK(!sru_load_bytes(&m, weights, file.p, file.n, NULL, error), "%s, highway_bias %g: "
                  "%s", type, (double)f.highway_bias, error))
            check_weights(type, &m, im, "");
        for (i = SRU_F32; i <= SRU_Q8; i++) {       /* infinities and NaN among them, too */
            void *packed = test_alloc(weights_size(&f, (sru_type)i));
            memset(&m, 0, sizeof m);
            m.type = (sru_type)i;
            CHECK(!sru_load_bytes(&m, packed, file.p, file.n, NULL, error), "%s as type %d: %s",
                  type, i, error);
            free(packed);
        }
        free(weights);
        st_clear(&file);
        image_free(im);
        image_free(other);
    }
}

/* ---- saving ---------------------------------------------------------------------------------- */

static char *path_of(const char *name)
{
    static char paths[16][700];
    static int next;
    char *path = paths[next++ % 16];
    sprintf(path, "%s/%s", directory, name);
    return path;
}

/* The number of files in our directory: a test must know of each. */
static int files_there(void)
{
    DIR *dir = opendir(directory);
    struct dirent *entry;
    int n = 0;
    while (dir && (entry = readdir(dir)) != NULL) n += entry->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
}

static st_bytes contents(const char *path)
{
    FILE *f = fopen(path, "rb");
    st_bytes b;
    unsigned char buffer[4096];
    size_t n;
    memset(&b, 0, sizeof b);
    if (!f) return b;
    while ((n = fread(buffer, 1, sizeof buffer, f)) > 0) st_put(&b, buffer, n);
    fclose(f);
    return b;
}

static sru_model initial(const sru_config *f, uint64_t seed)
{
    float *weights = (float *)test_alloc(weights_size(f, SRU_PLAIN));
    sru_model m;
    sru_tensor t;
    int i;
    memset(&m, 0, sizeof m);
    m.config = *f;
    m.weights = weights;
    CHECK(!sru_init(weights, f, seed), "sru_init()");
    for (i = 0; sru_get_tensor(&t, &m, i); i++)             /* v1 or not, all values count */
        test_fill(t.data, t.shape[0]*(t.shape[1] ? t.shape[1] : 1), 1);
    return m;
}

static void release(const sru_model *m) { free((void *)(uintptr_t)m->weights); }

/* Compares the file's own config with the one that was saved. */
static void check_saved_config(const char *what, const st_file *file, const sru_config *f)
{
    st_config c;
    char fault[256];
    int l;
    if (!CHECK(st_read_config(&c, file, fault), "%s: %s", what, fault)) return;
    CHECK(!strcmp(file->module, "SRU"), "%s: module '%s'", what, file->module);
    CHECK((int)c.input_size == f->input_size && (int)c.hidden_size == f->hidden_size
          && (int)c.num_layers == naive_layers(f), "%s: sizes in %s", what, file->config);
    CHECK((int)c.bidirectional == f->bidirectional && (int)c.use_tanh == f->use_tanh
          && (int)c.layer_norm == f->layer_norm && (int)c.normalize_after == f->normalize_after
          && (int)c.has_skip_term == !f->no_skip_term && (int)c.rescale == f->rescale
          && (int)c.v1 == f->v1
          && (int)c.proj_input_to_hidden_first == f->proj_input_to_hidden_first
          && (int)c.nn_rnn_compatible_return == f->nn_rnn_compatible_return, "%s: switches in %s",
          what, file->config);
    CHECK((float)c.highway_bias == f->highway_bias && (float)c.dropout == f->dropout
          && (float)c.rnn_dropout == f->rnn_dropout
          && (float)c.layer_dropout == f->layer_dropout
          && (float)c.weight_c_init == (f->weight_c_init > 0 ? f->weight_c_init : -1),
          "%s: numbers in %s", what, file->config);
    for (l = 0; l < naive_layers(f); l++)
        CHECK((int)c.projection[l] == (f->projection_sizes[l] ? f->projection_sizes[l]
                                                              : f->projection_size),
              "%s: projection of layer %d in %s", what, l, file->config);
}

static void test_round_trips(void)
{
    static const char *const prefixes[] = { NULL, "", "rnn.", "a \"quoted\" \\ prefix.",
                                            "\xc3\xa9\n." };
    int round;
    for (round = 0; round < 150; round++) {
        const char *prefix = prefixes[round % 5];
        sru_config f = random_config();
        sru_model m, loaded, *from_path;
        st_bytes file;
        st_file saved;
        st_file *s = &saved;
        char what[40], error[SRU_ERROR_SIZE] = "";
        const char *path = path_of("model.safetensors");
        image *expected;
        void *weights;
        int i;
        if (round % 3 == 0) f.layer_dropout = (float)(0.5 + 0.4*test_random());
        if (round == 7) {                   /* as many layers, and as long a config, as can be */
            f = small_config(SRU_ARCH_SRU3);
            f.num_layers = SRU_MAX_LAYERS;
            for (i = 0; i < SRU_MAX_LAYERS; i++) f.projection_sizes[i] = 1 + i % 7;
            f.projection_sizes[3] = sizeof(size_t) > 4 ? 2000 : 500;
            f.dropout = f.rnn_dropout = 0.12345678f;
            f.highway_bias = -1.2345679e-20f;
            f.weight_c_init = 1.2345679e-20f;
            f.bidirectional = f.layer_norm = f.normalize_after = f.use_tanh = f.rescale = 1;
            f.v1 = f.no_skip_term = f.proj_input_to_hidden_first = f.nn_rnn_compatible_return = 1;
        }
        sprintf(what, "saved network %d", round);
        m = initial(&f, 1);
        expected = network(&f, prefix ? prefix : "");
        if (!CHECK(!sru_save(path, &m, prefix, NULL, 0, error), "%s: %s", what, error)) continue;
        CHECK(!error[0], "%s: a sentence, '%s', without a failure", what, error);
        CHECK(files_there() == 1, "%s: %d files", what, files_there());
        file = contents(path);
        if (CHECK(st_open(s, file.p, file.n), "%s: %s", what, s->fault)) {
            CHECK(s->n == expected->n, "%s: %d tensors, not %d", what, s->n, expected->n);
            CHECK(s->data_at % 8 == 0, "%s: data at %lu", what, (unsigned long)s->data_at);
            check_saved_config(what, s, &f);
            for (i = 0; i < expected->n; i++) {     /* what was saved, back into the image */
                piece *p = &expected->p[i];
                const st_entry *e = st_find(s, p->name);
                size_t j;
                if (!CHECK(e != NULL, "%s: no '%s'", what, p->name)) continue;
                CHECK(!strcmp(e->dtype, "F32") && e->rank == p->rank
                      && !memcmp(e->shape, p->shape, p->rank*sizeof *p->shape),
                      "%s: '%s' has another shape or type", what, p->name);
                if (ends_in(p->name, "scale_x"))
                    CHECK(test_to_bits(st_value(e, 0)) == test_to_bits((float)naive_scale_x(&f)),
                          "%s: scale_x is %.9g, not %.9g", what, (double)st_value(e, 0),
                          naive_scale_x(&f));
                for (j = 0; j < e->count && j < (p->end - p->begin)/4; j++)
                    set_bits(expected, p, j, test_to_bits(st_value(e, j)));
            }
            check_weights(what, &m, expected, prefix ? prefix : "");
        }
        st_close(s);

        weights = test_alloc(weights_size(&f, SRU_PLAIN));
        memset(&loaded, 0, sizeof loaded);
        CHECK(!sru_load_bytes(&loaded, weights, file.p, file.n, prefix, error), "%s: %s", what,
              error);
        check_config(what, &loaded.config, &f);
        CHECK(!memcmp(weights, m.weights, weights_size(&f, SRU_PLAIN)), "%s: other weights", what);
        from_path = sru_load(path, (sru_type)(round % 4), error);
        if (CHECK(from_path != NULL, "%s: %s", what, error)) {
            void *packed = test_alloc(weights_size(&f, from_path->type));
            sru_model to;
            memset(&to, 0, sizeof to);
            to.type = (sru_type)(round % 4);
            CHECK(from_path->type == to.type, "%s: type %d", what, (int)from_path->type);
            check_config(what, &from_path->config, &f);
            CHECK((uintptr_t)from_path->weights % 64 == 0, "%s: weights not aligned", what);
            CHECK(!sru_pack(NULL, &to, packed, &m), "%s: sru_pack()", what);
            CHECK(!memcmp(packed, from_path->weights, weights_size(&f, to.type)),
                  "%s: sru_load() gives other bytes", what);
            free(packed);
        }
        free(from_path);
        free(weights);
        release(&m);
        st_clear(&file);
        image_free(expected);
        unlink(path);
    }
}

/* Whether the reference can compute it or only C: a network that is loaded computes the same. */
static void test_same_results(void)
{
    const char *path = path_of("same.safetensors");
    int round;
    for (round = 0; round < 300; round++) {
        const size_t T = 5, B = 2;
        sru_config f = random_config();
        sru_model m, *loaded;
        sru_sizes size, again;
        sru_io io;
        float *x, *h, *other, *state;
        char error[SRU_ERROR_SIZE] = "";
        int l;
        f.arch = (sru_arch)(round % 3);
        f.layer_dropout = test_bits() % 2 ? 0.25f : 0;
        f.scale_x = test_bits() % 2 ? 1.7f : 0;
        f.causal = (int)(test_bits() % 2);
        for (l = 0; l < f.num_layers; l++)
            f.projection_sizes[l] = test_bits() % 2 ? 0 : 2*(1 + (int)(test_bits() % 3));
        if (f.arch == SRU_ARCH_SRUPP) {
            f.projection_size = 2*(1 + (int)(test_bits() % 3));
            f.num_heads = (int)(test_bits() % 3);
            f.window = test_bits() % 2 ? 1 + (int)(test_bits() % 4) : 0;
            f.attn_dropout = test_bits() % 2 ? 0.125f : 0;
            f.no_attn_layer_norm = (int)(test_bits() % 2);
            f.attention_every_n_layers = (int)(test_bits() % 3);
            f.attention_last_n_layers = (int)(test_bits() % 4) - 1;
            if (f.window) f.bidirectional = 0;
            if (test_bits() % 4 == 0) f.highway_bias = 0;
        }
        m = initial(&f, 1);
        CHECK(!sru_size(&size, NULL, &m, T, B), "network %d", round);
        CHECK(!sru_save(path, &m, "net.", NULL, 0, error), "network %d: %s", round, error);
        loaded = sru_load(path, SRU_PLAIN, error);
        if (!CHECK(loaded != NULL, "network %d: %s", round, error)) {
            release(&m);
            continue;
        }
        check_config("saved and loaded", &loaded->config, &f);
        CHECK(loaded->config.window == f.window && loaded->config.causal == f.causal
              && loaded->config.attn_dropout == f.attn_dropout, "network %d: attention", round);
        CHECK(!sru_size(&again, NULL, loaded, T, B) && again.weights == size.weights
              && again.state == size.state, "network %d: other sizes", round);
        CHECK(!memcmp(loaded->weights, m.weights, size.weights), "network %d: weights", round);
        memset(&io, 0, sizeof io);
        io.T = T;
        io.B = B;
        io.x = x = test_floats(T*B*(size_t)f.input_size);
        test_fill(x, T*B*(size_t)f.input_size, 1);
        h = test_floats(T*B*naive_width(&f));
        other = test_floats(T*B*naive_width(&f));
        state = test_floats(B*size.state);
        io.state = f.bidirectional ? NULL : state;
        io.h = h;
        CHECK(!sru_forward(NULL, &m, &io), "network %d", round);
        memset(state, 0, B*size.state*sizeof *state);
        io.h = other;
        CHECK(!sru_forward(NULL, loaded, &io), "network %d", round);
        CHECK(!memcmp(h, other, T*B*naive_width(&f)*sizeof *h), "network %d: other results", round);
        free(x);
        free(h);
        free(other);
        free(state);
        free(loaded);
        release(&m);
    }
    unlink(path);
}

/* A file can hold a second network, its tensors under other names. */
static void test_second_network(void)
{
    enum { MOST = 400 };
    const char *path = path_of("second.safetensors");
    static sru_tensor own[MOST];
    int round;
    for (round = 0; round < 40; round++) {
        sru_config f = random_config(), g = random_config();
        sru_model first, second, again, *loaded;
        sru_tensor t;
        char error[SRU_ERROR_SIZE] = "";
        size_t size = 0;
        void *file;
        int n, i;
        g.arch = (sru_arch)(round % 3);
        if (g.arch == SRU_ARCH_SRUPP) g.projection_size = 6;
        first = initial(&f, 1);
        second = initial(&g, 2);
        again = initial(&g, 3);
        for (n = 0; n < MOST && sru_get_tensor(own + n, &second, n); n++)
            sprintf(own[n].name, "second.%d", n);
        CHECK(!sru_save(path, &first, "first.", own, n, error), "network %d: %s", round, error);
        loaded = sru_load(path, SRU_PLAIN, error);
        CHECK(loaded && !memcmp(loaded->weights, first.weights, weights_size(&f, SRU_PLAIN)),
              "network %d: the first has other weights: %s", round, error);
        file = sru_read_file(path, &size, error);
        for (i = 0; sru_get_tensor(&t, &again, i); i++) {
            sprintf(t.name, "second.%d", i);
            CHECK(!sru_read_tensor(&t, file, size, error), "network %d: %s", round, error);
        }
        CHECK(i == n && !memcmp(again.weights, second.weights, weights_size(&g, SRU_PLAIN)),
              "network %d: the second has other weights", round);
        free(loaded);
        free(file);
        release(&first);
        release(&second);
        release(&again);
    }
    unlink(path);
}

/* A training that may be interrupted: all that it needs to go on. */
typedef struct trainer {
    sru_model m;
    float    *p, *moments, *state, *step;   /* (n) (2,n) (B,S) (1) */
    size_t    n, states;
} trainer;

enum { TRAINED_T = 6, TRAINED_B = 2 };

static trainer new_training(const sru_config *f)
{
    trainer t;
    sru_sizes size;
    memset(&t, 0, sizeof t);
    t.m = initial(f, 1);
    t.p = (float *)(uintptr_t)t.m.weights;
    CHECK(!sru_size(&size, NULL, &t.m, TRAINED_T, TRAINED_B), "a training");
    t.n = size.weights/sizeof(float);
    t.states = TRAINED_B*size.state;
    t.moments = test_floats(2*t.n);
    t.state = test_floats(t.states);
    t.step = test_floats(1);
    return t;
}

static void end_training(trainer *t)
{
    free(t->p);
    free(t->moments);
    free(t->state);
    free(t->step);
}

static void own_of_training(const trainer *t, sru_tensor own[3])
{
    const sru_tensor list[3] = {
        { "moments", { 2, t->n },   t->moments, 0, 0 },
        { "state",   { t->states }, t->state,   0, 0 },
        { "step",    { 1 },         t->step,    0, 0 }
    };
    memcpy(own, list, sizeof list);
}

static void go_on(trainer *t, int updates)
{
    const size_t rows = TRAINED_T*TRAINED_B, N = naive_width(&t->m.config);
    float *x = test_floats(rows*(size_t)t->m.config.input_size), *h = test_floats(rows*N);
    float *g = test_floats(t->n);
    sru_context ctx;
    sru_sizes size;
    sru_io io;
    memset(&ctx, 0, sizeof ctx);
    memset(&io, 0, sizeof io);
    CHECK(!sru_size(&size, &ctx, &t->m, TRAINED_T, TRAINED_B), "a training");
    test_random_state = 1;
    test_fill(x, rows*(size_t)t->m.config.input_size, 1);
    io.T = TRAINED_T;
    io.B = TRAINED_B;
    io.x = x;
    io.h = h;
    io.dh = h;
    io.state = t->state;
    io.tape = test_alloc(size.tape);
    io.grads = g;
    for (ctx.step = (uint64_t)*t->step; updates-- > 0; *t->step = (float)++ctx.step) {
        CHECK(!sru_forward(&ctx, &t->m, &io), "a training");
        CHECK(!sru_backward(&ctx, &t->m, &io), "a training");
        CHECK(!sru_cpu()->adamw(&ctx, t->p, t->moments, t->moments + t->n, g, 1, 0.01f, 0.9f,
                                0.99f, 1e-8f, 0.1f, ctx.step + 1, t->n), "a training");
    }
    free(x);
    free(h);
    free(g);
    free(io.tape);
}

/* A training that is saved, read and continued ends in the same bits as one without a pause. */
static void test_training_goes_on(void)
{
    const char *path = path_of("training.safetensors");
    trainer whole, first, second;
    char error[SRU_ERROR_SIZE] = "";
    sru_tensor own[3];
    sru_config f;
    st_bytes file;
    int i;
    memset(&f, 0, sizeof f);
    f.input_size = 4;
    f.hidden_size = 6;
    f.layer_norm = 1;
    f.dropout = f.rnn_dropout = f.layer_dropout = 0.25f;
    whole = new_training(&f);
    first = new_training(&f);
    second = new_training(&f);
    memcpy(first.p, whole.p, whole.n*sizeof(float));
    go_on(&whole, 5);
    go_on(&first, 2);
    CHECK(memcmp(first.p, whole.p, whole.n*sizeof(float)), "three updates change nothing");
    own_of_training(&first, own);
    CHECK(!sru_save(path, &first.m, "rnn.", own, 3, error), "%s", error);
    file = contents(path);
    memset(&second.m, 0, sizeof second.m);
    CHECK(!sru_load_bytes(&second.m, second.p, file.p, file.n, "rnn.", error), "%s", error);
    own_of_training(&second, own);
    for (i = 0; i < 3; i++)
        CHECK(!sru_read_tensor(&own[i], file.p, file.n, error), "%s", error);
    go_on(&second, 3);
    CHECK(!memcmp(second.p, whole.p, whole.n*sizeof(float)), "weights go on with other bits");
    CHECK(!memcmp(second.moments, whole.moments, 2*whole.n*sizeof(float)), "moments do");
    CHECK(!memcmp(second.state, whole.state, whole.states*sizeof(float)), "a state does");
    free(file.p);
    end_training(&whole);
    end_training(&first);
    end_training(&second);
    unlink(path);
}

/* The same projection in all layers is saved as one number, however it was given; of arguments that
   exclude each other, one is written; and what attention_last_n_layers means below -1. */
static void test_written_config(void)
{
    static const struct { const char *is; int all; const char *says; } last[] = {
        { "-1", 1, "" }, { "2", 1, "" }, { "3", 1, "" }, { "null", 1, "" },
        { "0", 0, "linear2" }, { "-5", 0, "linear2" }, { "-0", 0, "linear2" },
        { "x", 0, "attention_last_n_layers" }, { "--1", 0, "attention_last_n_layers" },
        { "- 1", 0, "attention_last_n_layers" }
    };
    const char *path = path_of("written.safetensors");
    sru_config f = small_config(SRU_ARCH_SRUPP);
    char error[SRU_ERROR_SIZE] = "";
    sru_model m;
    st_bytes file;
    st_file saved;
    size_t i;
    f.projection_sizes[0] = f.projection_sizes[1] = 2;
    f.attention_last_n_layers = 1;
    f.attention_every_n_layers = 2;
    f.use_tanh = f.no_skip_term = 1;
    m = initial(&f, 1);
    CHECK(!sru_save(path, &m, NULL, NULL, 0, error), "%s", error);
    file = contents(path);
    CHECK(st_open(&saved, file.p, file.n), "%s", saved.fault);
    CHECK(!strcmp(saved.config, "{\"input_size\": 3, \"hidden_size\": 2, \"proj_size\": 2, "
                  "\"highway_bias\": 0, \"attention_last_n_layers\": 1}"), "%s", saved.config);
    st_close(&saved);
    release(&m);
    st_clear(&file);

    f.no_skip_term = f.use_tanh = f.attention_every_n_layers = 0;
    f.attention_last_n_layers = 2;              /* of 2: in all, as where it is not given */
    m = initial(&f, 1);
    CHECK(!sru_save(path, &m, NULL, NULL, 0, error), "%s", error);
    file = contents(path);
    for (i = 0; i < sizeof last/sizeof *last; i++) {
        static const char argument[] = "last_n_layers\\\": ";
        st_bytes header, data, changed;
        sru_model loaded;
        size_t n = 0, k;
        memset(&header, 0, sizeof header);
        memset(&data, 0, sizeof data);
        memset(&changed, 0, sizeof changed);
        memset(&loaded, 0, sizeof loaded);
        for (k = 0; k < 8; k++) n |= (size_t)file.p[k] << 8*k;
        for (k = 8; memcmp(file.p + k, argument, sizeof argument - 1); k++) { }
        k += sizeof argument - 1;
        st_put(&header, file.p + 8, k - 8);
        st_text(&header, last[i].is);
        st_put(&header, file.p + k + 1, n + 8 - k - 1);
        st_put(&data, file.p + n + 8, file.n - n - 8);
        st_file_of(&changed, header.p, header.n, &data);
        error[0] = 0;
        if (last[i].all)
            CHECK(!sru_load_bytes(&loaded, NULL, changed.p, changed.n, NULL, error), "%s: %s",
                  last[i].is, error);
        else
            CHECK(sru_load_bytes(&loaded, NULL, changed.p, changed.n, NULL, error) == SRU_EFILE
                  && strstr(error, last[i].says), "%s: %s", last[i].is, error);
        st_clear(&header);
        st_clear(&data);
        st_clear(&changed);
    }
    st_clear(&file);
    unlink(path);
    release(&m);
}

/* A program may have set a locale whose decimal point is a comma or has several bytes: files are
   still the same, and mean the same. */
static void test_locales(void)
{
    static const char *const names[] = { "de_DE.UTF-8", "fr_FR.UTF-8", "pt_BR.UTF-8", "ru_RU.UTF-8",
                                         "ps_AF.UTF-8" };
    const char *path = path_of("locale.safetensors");
    sru_config f = small_config(SRU_ARCH_SRU);
    char error[SRU_ERROR_SIZE] = "";
    int found[2] = { 0, 0 };
    st_bytes plain;
    sru_model m;
    size_t i;
    f.dropout = 0.1f;
    f.rnn_dropout = 0.25f;
    f.layer_dropout = 0.7f;
    f.highway_bias = -1.5e-7f;
    f.weight_c_init = 12345.678f;
    m = initial(&f, 1);
    CHECK(!sru_save(path, &m, NULL, NULL, 0, error), "%s", error);
    plain = contents(path);
    for (i = 0; i < sizeof names/sizeof *names; i++) {
        sru_model loaded;
        st_bytes file;
        if (!setlocale(LC_NUMERIC, names[i])) continue;
        found[strlen(localeconv()->decimal_point) > 1] |= *localeconv()->decimal_point != '.';
        memset(&loaded, 0, sizeof loaded);
        CHECK(!sru_save(path, &m, NULL, NULL, 0, error), "%s: %s", names[i], error);
        file = contents(path);
        CHECK(file.n == plain.n && !memcmp(file.p, plain.p, file.n), "%s: other bytes", names[i]);
        CHECK(!sru_load_bytes(&loaded, NULL, plain.p, plain.n, NULL, error), "%s: %s", names[i],
              error);
        setlocale(LC_NUMERIC, "C");
        check_config(names[i], &loaded.config, &f);
        st_clear(&file);
    }
    if (!found[0]) printf("skipped: numbers with a comma: there is no locale that has them\n");
    if (!found[1]) printf("skipped: numbers with a sign of several bytes: no such locale\n");
    st_clear(&plain);
    unlink(path);
    release(&m);
}

static void test_own_tensors(void)
{
    enum { OWN = 7, LONGEST = 80 };
    static const char *const names[OWN] = { "embedding.weight", "a \"name\" \\ with / \x01 all",
                                            "\xf0\x9f\x98\x80", "scalar", "four", "reordered",
                                            "grouped" };
    static const size_t shapes[OWN][4] = { { 5, 3 }, { 7 }, { 1, 1 }, { 0 }, { 2, 3, 4, 5 },
                                           { 3, 8 }, { 6, 5 } };
    sru_config f = small_config(SRU_ARCH_SRU);
    sru_model m = initial(&f, 3), *loaded;
    sru_tensor own[OWN], bad[2];
    char error[SRU_ERROR_SIZE] = "", longest[LONGEST + 2] = "";
    const char *path = path_of("own.safetensors");
    st_bytes file, old;
    st_file saved;
    int i, k;
    memset(own, 0, sizeof own);
    for (i = 0; i < OWN; i++) {
        size_t count = 1;
        strcpy(own[i].name, names[i]);
        memcpy(own[i].shape, shapes[i], sizeof shapes[i]);
        for (k = 0; k < 4 && own[i].shape[k]; k++) count *= own[i].shape[k];
        own[i].data = test_floats(count);
        test_fill(own[i].data, count, 1);
    }
    own[5].transpose = 1;               /* in the file (3,8); ours (8,3), of 4 interleaved groups */
    own[5].interleave = 4;
    own[6].interleave = 3;
    CHECK(!sru_save(path, &m, "rnn.", own, OWN, error), "%s", error);
    file = contents(path);
    accept_bytes("with tensors of our own", &file, NULL);
    if (CHECK(st_open(&saved, file.p, file.n), "%s", saved.fault)) {
        for (i = 0; i < OWN; i++) {
            const st_entry *e = st_find(&saved, names[i]);
            sru_tensor t = own[i];
            float *back;
            size_t j, wrong = 0;
            if (!CHECK(e != NULL, "own tensor %d is not there", i)) continue;
            for (k = 0; k < 4 && own[i].shape[k]; k++)
                CHECK((int)e->rank > k && e->shape[k] == own[i].shape[k], "own tensor %d", i);
            CHECK((int)e->rank == k, "own tensor %d has %lu dimensions", i,
                  (unsigned long)e->rank);
            for (j = 0; j < e->count; j++) {
                size_t at = j;
                if (i == 5) at = (j % 8 % 4*2 + j % 8/4)*3 + j/8;
                if (i == 6) at = (j/5 % 3*2 + j/5/3)*5 + j % 5;
                wrong += test_to_bits(st_value(e, j)) != test_to_bits(own[i].data[at]);
            }
            CHECK(!wrong, "own tensor %d: %lu values are wrong", i, (unsigned long)wrong);
            back = t.data = test_floats(e->count);
            CHECK(!sru_read_tensor(&t, file.p, file.n, error), "own tensor %d: %s", i, error);
            CHECK(!memcmp(back, own[i].data, e->count*sizeof *back), "own tensor %d read back", i);
            free(back);
        }
    }
    st_close(&saved);

    memset(longest, 'p', LONGEST);
    longest[LONGEST] = '.';
    CHECK(!sru_save(path_of("prefix.safetensors"), &m, longest + 1, NULL, 0, error), "%s", error);
    loaded = sru_load(path_of("prefix.safetensors"), SRU_PLAIN, error);
    CHECK(loaded != NULL, "a prefix of %d bytes: %s", LONGEST, error);
    free(loaded);
    unlink(path_of("prefix.safetensors"));

    /* if something cannot be saved, the file that is there stays as it is */
    for (i = 0; i < 22; i++) {
        int n = 1;
        const char *prefix = "rnn.";
        memset(bad, 0, sizeof bad);
        bad[0] = bad[1] = own[0];
        switch (i) {
        case 0: n = 2; break;                                       /* two of one name */
        case 1: strcpy(bad[0].name, "rnn.rnn_lst.0.weight"); break;
        case 2: strcpy(bad[0].name, "rnn.rnn_lst.1.scale_x"); break;
        case 3: bad[0].name[0] = 0; break;
        case 4: memset(bad[0].name, 'n', sizeof bad[0].name); break;
        case 5: bad[0].data = NULL; break;
        case 6: strcpy(bad[0].name, "__metadata__"); break;
        case 7: bad[0].shape[0] = SIZE_MAX/2; break;
        case 8: bad[0].shape[0] = bad[0].shape[1] = (size_t)1 << sizeof(size_t)*4; break;
        case 9: n = -1; break;
        case 10:                                                    /* 3 do not go into 5 */
            bad[0].interleave = 3;
            break;
        case 11: bad[0].interleave = -1; break;
        case 12:                                                    /* of one dimension */
            bad[0].shape[1] = 0;
            bad[0].interleave = 5;
            break;
        case 13: bad[0].shape[1] = 0; bad[0].transpose = 1; break;
        case 14: prefix = "net"; break;                             /* sru_load() would not find */
        case 15: prefix = "net.x"; break;
        case 16: strcpy(bad[0].name, "rnn.norm"); break;            /* sru_load() would refuse */
        case 17: prefix = ""; break;
        case 18: prefix = "net.rnn_lst."; break;
        case 19:                                                    /* too large together */
            n = 2;
            strcpy(bad[1].name, "another");
            bad[0].shape[0] = bad[1].shape[0] = SIZE_MAX/12;
            bad[0].shape[1] = bad[1].shape[1] = 0;
            break;
        case 20: strcpy(bad[0].name, "other.rnn_lst.0.weight"); break; /* seen as a network */
        default: prefix = longest; break;                           /* but for a byte more */
        }
        error[0] = 0;
        CHECK(sru_save(path, &m, prefix, bad, n, error) == SRU_EINVAL, "own tensor, case %d", i);
        CHECK(printable(error), "own tensor, case %d: no sentence", i);
        CHECK(sru_save(path, &m, prefix, bad, n, NULL) == SRU_EINVAL, "own tensor, case %d", i);
    }
    CHECK(sru_save(path, &m, NULL, NULL, 1, error) == SRU_EINVAL, "no own tensors, yet one");
    CHECK(sru_save(NULL, &m, NULL, NULL, 0, error) == SRU_EINVAL, "no path");
    CHECK(sru_save(path, NULL, NULL, NULL, 0, error) == SRU_EINVAL, "no model");
    CHECK(sru_save(NULL, NULL, NULL, NULL, 0, NULL) == SRU_EINVAL, "nothing");
    {
        sru_model other = m;
        other.weights = NULL;
        CHECK(sru_save(path, &other, NULL, NULL, 0, error) == SRU_EINVAL, "no weights");
        other = m;
        other.type = SRU_Q8;
        CHECK(sru_save(path, &other, NULL, NULL, 0, error) == SRU_EINVAL, "packed weights");
        other = m;
        other.config.hidden_size = 0;
        CHECK(sru_save(path, &other, NULL, NULL, 0, error) == SRU_EINVAL, "a bad config");
        CHECK(strstr(error, "hidden_size") != NULL, "%s", error);
    }
    old = contents(path);
    CHECK(old.n == file.n && !memcmp(old.p, file.p, file.n), "the file is changed");
    CHECK(files_there() == 1, "%d files", files_there());
    unlink(path);
    st_clear(&old);
    st_clear(&file);
    for (i = 0; i < OWN; i++) free(own[i].data);
    release(&m);
}

static sru_status limited_save(const char *path, const sru_model *m, size_t bytes, char *error)
{
    struct rlimit was, now;
    sru_status status;
    getrlimit(RLIMIT_FSIZE, &was);
    now = was;
    now.rlim_cur = (rlim_t)bytes;
    setrlimit(RLIMIT_FSIZE, &now);              /* print nothing before it is lifted again */
    status = sru_save(path, m, NULL, NULL, 0, error);
    setrlimit(RLIMIT_FSIZE, &was);
    return status;
}

/* A disk that fills up while a file is written, at any place of it. */
static void test_full_disk(void)
{
    const char *path = path_of("full.safetensors"), *fresh = path_of("fresh.safetensors");
    void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
    int size;
    for (size = 0; size < 2; size++) {          /* within stdio's buffer, and many times that */
        sru_config f = small_config(SRU_ARCH_SRU3);
        sru_model old, m;
        st_bytes before, after;
        char error[SRU_ERROR_SIZE];
        size_t limit, step;
        if (size) f.hidden_size = 90;
        old = initial(&f, 1);
        m = initial(&f, 2);
        CHECK(!sru_save(path, &old, NULL, NULL, 0, NULL), "an old file");
        before = contents(path);
        step = before.n/40 + 1;
        for (limit = 0; limit < before.n; limit += limit + step >= before.n && limit + 1 < before.n
                                                   ? before.n - 1 - limit : step) {
            sru_status status;
            error[0] = 0;
            status = limited_save(path, &m, limit, error);
            CHECK(status == SRU_EFILE, "room for %lu of %lu bytes: status %d",
                  (unsigned long)limit, (unsigned long)before.n, (int)status);
            CHECK(strstr(error, "full.safetensors") != NULL, "'%s'", error);
            after = contents(path);
            CHECK(after.n == before.n && !memcmp(after.p, before.p, before.n),
                  "room for %lu bytes: the old file is not whole", (unsigned long)limit);
            st_clear(&after);
            status = limited_save(fresh, &m, limit, error);
            CHECK(status == SRU_EFILE, "room for %lu of %lu bytes: status %d",
                  (unsigned long)limit, (unsigned long)before.n, (int)status);
            CHECK(files_there() == 1, "room for %lu bytes: %d files", (unsigned long)limit,
                  files_there());
        }
        CHECK(!limited_save(path, &m, before.n, error), "room enough: %s", error);
        after = contents(path);
        CHECK(after.n == before.n && memcmp(after.p, before.p, before.n), "the new file is there");
        accept_bytes("the new file", &after, NULL);
        CHECK(files_there() == 1, "%d files", files_there());
        unlink(path);
        st_clear(&before);
        st_clear(&after);
        release(&old);
        release(&m);
    }
    signal(SIGXFSZ, was);
}

/* A pipe: how many bytes come from it is not known beforehand. */
static void test_pipe(void)
{
    enum { MANY = 200000 };
    const char *path = path_of("pipe");
    char error[SRU_ERROR_SIZE] = "";
    unsigned char *bytes;
    size_t size = 0, i, wrong = 0;
    pid_t child;
    if (mkfifo(path, 0600)) {
        printf("skipped: there are no pipes: %s\n", strerror(errno));
        return;
    }
    fflush(stdout);
    child = fork();
    if (child == 0) {
        FILE *out = fopen(path, "wb");
        for (i = 0; out && i < MANY; i++) putc((int)(i % 251), out);
        _exit(!out || fclose(out));
    }
    if (child < 0) {
        printf("skipped: there is no other process: %s\n", strerror(errno));
    } else {
        bytes = (unsigned char *)sru_read_file(path, &size, error);
        CHECK(bytes && size == MANY, "%lu bytes of a pipe: '%s'", (unsigned long)size, error);
        for (i = 0; bytes && i < size; i++) wrong += bytes[i] != i % 251;
        CHECK(!wrong, "%lu bytes of a pipe are wrong", (unsigned long)wrong);
        free(bytes);
        waitpid(child, NULL, 0);
    }
    unlink(path);
}

/* A process that ends while it writes. */
static void test_interrupted(void)
{
    const char *path = path_of("interrupted.safetensors");
    sru_config f = small_config(SRU_ARCH_SRU);
    sru_model old, m;
    st_bytes before, after;
    size_t limit;
    f.hidden_size = 80;
    old = initial(&f, 1);
    m = initial(&f, 2);
    CHECK(!sru_save(path, &old, NULL, NULL, 0, NULL), "an old file");
    before = contents(path);
    for (limit = 0; limit < before.n; limit += before.n/5 + 1) {
        char error[SRU_ERROR_SIZE] = "";
        int result = -1;
        pid_t child;
        fflush(stdout);
        child = fork();
        if (child == 0) {
            struct rlimit none;
            none.rlim_cur = none.rlim_max = 0;
            setrlimit(RLIMIT_CORE, &none);
            signal(SIGXFSZ, SIG_DFL);
            _exit(limited_save(path, &m, limit, NULL) ? 1 : 0);
        }
        if (child < 0 || waitpid(child, &result, 0) != child) {
            printf("skipped: there is no other process: %s\n", strerror(errno));
            break;
        }
        CHECK(WIFSIGNALED(result), "the process was not interrupted: %d", result);
        after = contents(path);
        CHECK(after.n == before.n && !memcmp(after.p, before.p, before.n),
              "interrupted after %lu bytes: the old file is not whole", (unsigned long)limit);
        st_clear(&after);
        CHECK(!sru_save(path, &old, NULL, NULL, 0, error), "saved again: %s", error);
        after = contents(path);
        CHECK(after.n == before.n && !memcmp(after.p, before.p, before.n), "saved again");
        st_clear(&after);
        CHECK(files_there() == 1, "interrupted, and saved again: %d files", files_there());
    }
    unlink(path);
    st_clear(&before);
    release(&old);
    release(&m);
}

static void test_paths(void)
{
    sru_config f = small_config(SRU_ARCH_SRU);
    sru_model m = initial(&f, 1), *loaded;
    const char *path = path_of("here.safetensors"), *folder = path_of("folder");
    char error[SRU_ERROR_SIZE] = "", *inside = path_of("folder/x.safetensors"), *beside;
    char longer[1000];
    st_bytes file;
    size_t size = 0;
    void *bytes;
    FILE *out;
    sru_type no_type;
    int i = 17;

    memcpy(&no_type, &i, sizeof no_type);
    CHECK(!mkdir(folder, 0755), "a folder: %s", strerror(errno));
    CHECK(sru_save(folder, &m, NULL, NULL, 0, error) == SRU_EFILE, "a folder as a file");
    CHECK(strstr(error, "folder") != NULL, "'%s'", error);
    CHECK(files_there() == 1, "%d files", files_there());
    CHECK(!sru_read_file(folder, &size, error), "a folder is read");
    CHECK(strstr(error, "folder") != NULL, "'%s'", error);
    CHECK(!sru_load(folder, SRU_F32, error), "a folder is loaded");
    if (geteuid()) {
        chmod(folder, 0555);
        error[0] = 0;
        CHECK(sru_save(inside, &m, NULL, NULL, 0, error) == SRU_EFILE, "a folder without rights");
        CHECK(strstr(error, "folder/x.safetensors") != NULL, "'%s'", error);
        chmod(folder, 0755);
    } else {
        printf("skipped: a folder without rights: nothing is forbidden to this user\n");
    }
    CHECK(!rmdir(folder), "the folder is not empty: %s", strerror(errno));
    error[0] = 0;
    CHECK(sru_save(inside, &m, NULL, NULL, 0, error) == SRU_EFILE, "no such folder");
    CHECK(strstr(error, "folder/x.safetensors") != NULL, "'%s'", error);
    CHECK(sru_save("", &m, NULL, NULL, 0, error) == SRU_EFILE, "an empty path");
    CHECK(sru_save(inside, &m, NULL, NULL, 0, NULL) == SRU_EFILE, "no such folder, no sentence");
    CHECK(files_there() == 0, "%d files", files_there());

    for (i = 0; i < 5; i++) {
        const char *wrong[5];
        wrong[0] = NULL;
        wrong[1] = "";
        wrong[2] = inside;
        wrong[3] = path_of("nothing.safetensors");
        wrong[4] = "/";
        memset(error, '!', sizeof error);
        CHECK(!sru_read_file(wrong[i], &size, error), "read from wrong path %d", i);
        CHECK(printable(error) && (i < 2 || strstr(error, wrong[i])), "wrong path %d: '%.250s'", i,
              error);
        memset(error, '!', sizeof error);
        CHECK(!sru_load(wrong[i], SRU_PLAIN, error), "loaded from wrong path %d", i);
        CHECK(printable(error) && (i < 2 || strstr(error, wrong[i])), "wrong path %d: '%.250s'", i,
              error);
        CHECK(!sru_load(wrong[i], SRU_PLAIN, NULL), "loaded from wrong path %d", i);
        CHECK(!sru_read_file(wrong[i], &size, NULL), "read from wrong path %d", i);
    }
    CHECK(!sru_read_file(path, NULL, error) && strstr(error, "size"), "no size: '%s'", error);
    CHECK(!sru_read_file(NULL, &size, error) && strstr(error, "path"), "no path: '%s'", error);

    out = fopen(path, "wb");                    /* an empty file */
    if (out) fclose(out);
    bytes = sru_read_file(path, &size, error);
    CHECK(bytes && !size, "an empty file has %lu bytes: %s", (unsigned long)size, error);
    free(bytes);
    memset(error, '!', sizeof error);
    CHECK(!sru_load(path, SRU_F32, error) && printable(error), "an empty file is loaded");
    CHECK(!strncmp(error, path, strlen(path)), "which file? '%s'", error);
    sprintf(longer, "%s/", directory);              /* the same file, of a path without room */
    while (strlen(longer) < 300) strcat(longer, "./");
    strcat(longer, "here.safetensors");
    CHECK(!sru_load(longer, SRU_F32, error) && strstr(error, "too few"), "'%s'", error);

    errno = 77;
    CHECK(!sru_save(path, &m, NULL, NULL, 0, error), "over an empty file: %s", error);
    CHECK(errno == 77, "saved, and errno is %d", errno);
    file = contents(path);
    errno = 77;
    bytes = sru_read_file(path, &size, error);
    CHECK(bytes && size == file.n && !memcmp(bytes, file.p, size), "read otherwise");
    CHECK(errno == 77, "read, and errno is %d", errno);
    free(bytes);
    beside = path_of("here.safetensors.sru_save");  /* a folder is where it would be written */
    CHECK(!mkdir(beside, 0755), "a folder: %s", strerror(errno));
    CHECK(sru_save(path, &m, NULL, NULL, 0, error) == SRU_EFILE, "beside is a folder");
    CHECK(strstr(error, beside) != NULL, "'%s'", error);
    CHECK(!rmdir(beside), "the folder beside is gone: %s", strerror(errno));
    bytes = sru_read_file(path, &size, error);
    CHECK(bytes && size == file.n && !memcmp(bytes, file.p, size), "the older file has changed");
    free(bytes);
    CHECK(!sru_load(path, no_type, error), "loaded as a type that there is not");
    loaded = sru_load(path, SRU_Q8, error);
    CHECK(loaded && loaded->type == SRU_Q8, "%s", error);
    free(loaded);

    /* beside it, a file of somebody else's, one that an interrupted sru_save() left, and a link */
    for (i = 0; i < 2; i++) {
        out = fopen(path_of(i ? "linked.safetensors.sru_save" : "linked.safetensors.tmp"), "wb");
        if (out) fputs("hello", out);
        if (out) fclose(out);
    }
    beside = path_of("linked.safetensors");
    CHECK(!symlink("linked.safetensors.tmp", beside), "a link: %s", strerror(errno));
    CHECK(!sru_save(beside, &m, NULL, NULL, 0, error), "in place of a link: %s", error);
    bytes = sru_read_file(beside, &size, error);
    CHECK(bytes && size == file.n && !memcmp(bytes, file.p, size), "in place of a link");
    free(bytes);
    bytes = sru_read_file(path_of("linked.safetensors.tmp"), &size, error);
    CHECK(bytes && size == 5 && !memcmp(bytes, "hello", 5), "another's file is changed: %s", error);
    free(bytes);
    CHECK(files_there() == 3, "%d files", files_there());
    unlink(beside);
    unlink(path_of("linked.safetensors.tmp"));
    out = fopen(path, "ab");                    /* larger than any first buffer */
    for (i = 0; out && i < 300000; i++) putc(i, out);
    if (out) fclose(out);
    st_clear(&file);
    file = contents(path);
    bytes = sru_read_file(path, &size, error);
    CHECK(bytes && size == file.n && size > 300000 && !memcmp(bytes, file.p, size), "a large file");
    free(bytes);
    memset(error, '!', sizeof error);
    CHECK(!sru_load(path, SRU_F32, error) && printable(error), "with 300000 bytes too many");
    unlink(path);
    st_clear(&file);
    release(&m);
}

/* A sentence that is cut off ends with a whole character, if what it names is UTF-8: otherwise,
   Python, Rust and others would refuse all of it. Bytes that are not UTF-8 do no harm. */
static void test_characters(void)
{
    static const char *const character[5] = {
        "\x7f", "\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x8e\xb5", "\x80"
    };
    char path[2*SRU_ERROR_SIZE], error[SRU_ERROR_SIZE];
    size_t size, i, k;
    for (k = 0; k < 5; k++) {
        const size_t n = strlen(character[k]);
        for (i = 0; i < n; i++) {
            memset(path, '-', i);
            path[i] = 0;
            while (strlen(path) < sizeof path - 5) strcat(path, character[k]);
            memset(error, '!', sizeof error);
            CHECK(!sru_read_file(path, &size, error) && printable(error), "found '%s'", path);
            if (k == 4) continue;
            CHECK(strlen(error) + n >= sizeof error
                  && !strcmp(error + strlen(error) - n, character[k]),
                  "%lu bytes of '%s' end amid a character", (unsigned long)strlen(error), path);
        }
    }
}

/* ---- arguments that are NULL ----------------------------------------------------------------- */

static void test_arguments(void)
{
    sru_config f = small_config(SRU_ARCH_SRU);
    image *im = network(&f, "");
    st_bytes file = image_file(im);
    sru_model m = initial(&f, 1), other;
    sru_tensor t;
    float some[3];
    char error[SRU_ERROR_SIZE] = "";
    int i;
    memset(&other, 0, sizeof other);

    CHECK(sru_load_bytes(NULL, NULL, file.p, file.n, NULL, error) == SRU_EINVAL, "no model");
    CHECK(printable(error), "no model: no sentence");
    CHECK(sru_load_bytes(NULL, NULL, file.p, file.n, NULL, NULL) == SRU_EINVAL, "no model");
    CHECK(sru_load_bytes(&other, NULL, NULL, file.n, NULL, error) == SRU_EINVAL, "no file");
    CHECK(sru_load_bytes(&other, NULL, NULL, 0, NULL, NULL) == SRU_EINVAL, "no file");
    for (i = 0; i < 4; i++) {
        static const int types[] = { -1, 4, 17, 1 << 30 };
        memcpy(&other.type, &types[i], sizeof other.type);
        CHECK(sru_load_bytes(&other, NULL, file.p, file.n, NULL, error) == SRU_EINVAL, "type %d",
              types[i]);
    }
    CHECK(!sru_get_tensor(NULL, &m, 0), "no tensor");
    CHECK(!sru_get_tensor(&t, NULL, 0), "no model");
    CHECK(!sru_get_tensor(&t, &m, -1), "tensor -1");
    CHECK(!sru_get_tensor(&t, &m, 2147483647), "tensor 2^31 - 1");
    CHECK(sru_get_tensor(&t, &m, 5) && !sru_get_tensor(&t, &m, 6), "there are 6 tensors");
    other = m;
    other.weights = NULL;
    CHECK(sru_get_tensor(&t, &other, 0) && !t.data, "a tensor without weights");
    memset(&other, 0, sizeof other);
    other.type = SRU_F16;
    CHECK(sru_pack(NULL, &other, some, &m) == SRU_EINVAL && !other.weights
          && !other.config.input_size, "sru_pack(): a type that is not offered changes the model");
    release(&m);
    st_clear(&file);
    image_free(im);
}

/* The lowest number that no open file has. */
static int next_file(void)
{
    const int file = dup(1);
    close(file);
    return file;
}

int main(int argc, char **argv)
{
    const int file = next_file();
    test_begin(argc, argv,
               "test_files\n"
               "Loads files, good and bad, and saves some: each must load to the bit, or be\n"
               "refused with a sentence that helps; one that cannot be completed must not stay.");
    test_folder(directory);
    test_truncation();
    test_broken_off();
    test_header_length();
    test_numbers();
    test_bytes();
    test_tensors_of_a_network();
    test_container();
    test_json();
    test_deep();
    test_config();
    test_metadata();
    test_scale_x();
    test_prefixes();
    test_names();
    test_others();
    test_spellings();
    test_orders();
    test_types();
    test_read_tensor();
    test_networks();
    test_types_of_weights();
    test_round_trips();
    test_same_results();
    test_second_network();
    test_training_goes_on();
    test_written_config();
    test_locales();
    test_own_tensors();
    test_full_disk();
    test_pipe();
    test_interrupted();
    test_paths();
    test_characters();
    test_arguments();
    CHECK(!rmdir(directory), "the directory '%s' is not empty", directory);
    CHECK(next_file() == file, "a file was left open");
    return test_end();
}
