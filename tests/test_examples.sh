#!/bin/sh
# Runs the examples and the benchmarks, and checks what they print. The last line is
# `N passed, N failed`. CC names the compiler; clang checks the code too, where it is installed.

. "$(dirname "$0")/check.sh"
warnings='-std=c99 -Wall -Wextra -Wpedantic -Wshadow -Werror'

refused()                       # refused COMMAND...: it must fail with one sentence, on stderr only
{
    "$@" > $dir/log.txt 2> $dir/error.txt
    status=$?
    [ $status != 0 ] && [ $status -lt 126 ] && [ ! -s $dir/log.txt ] &&
        [ "$(wc -l < $dir/error.txt)" = 1 ]
    count $? "is not refused by one sentence: $*"
}

unwritten()                     # unwritten COMMAND...: it must fail if its output cannot be written
{
    [ -w /dev/full ] || { echo "skipped: there is no /dev/full"; return; }
    "$@" > /dev/full 2> $dir/error.txt
    [ $? != 0 ] && [ "$(wc -l < $dir/error.txt)" = 1 ]
    count $? "does not say that its output cannot be written: $*"
}

# numbers FILE: prints the numbers of the lines "h[...] = ...", one a line
numbers() { sed -n 's/^h\[.*\] = *//p' $1 | tr -s ' ' '\n' | grep '[0-9]'; }

# close FILE FILE TOLERANCE: the files must have as many numbers, and none further apart than that
close()
{
    numbers $1 > $dir/a.txt
    numbers $2 > $dir/b.txt
    paste $dir/a.txt $dir/b.txt | awk -v tolerance=$3 '
        { off = $1 - $2; if (NF != 2 || off > tolerance || off < -tolerance) bad = 1 }
        END { exit bad || NR < 12 }'
}

# ---- they compile without a warning, and build as the Makefile builds them -----------------------

check "make" make all
check "make run with a blank in the file's name" sh -c 'make -n run FILE="a b" | grep \"a\ b\"'
have clang
for source in examples/*.c bench/bench.c; do
    program=build/$(basename $source .c)
    for compiler in "$CC" clang; do
        command -v ${compiler%% *} > /dev/null || continue
        check $source $compiler $warnings -fsyntax-only -Ibuild $source
    done
    check "$source is whole without build/sru.o" grep -q '^#define SRU_IMPLEMENTATION' $source
    grep -q argv $source || continue
    check "--help" $program --help
    check "$program --help fits in 80 columns" awk 'length > 80 { exit 1 }' $dir/before.txt
done
check "make help in Turkish, where i is not one of a-z" \
    sh -c '[ "$(make help)" = "$(LC_ALL=tr_TR.UTF-8 make help)" ]'
make -n help CC="echo >> $dir/cc.txt" > $dir/log.txt 2>&1
check "no compiler takes the place of /dev/null, as tcc would" grep -v /dev/null $dir/cc.txt
check "peak" make build/peak
for program in build/peak "sh bench/setup" "sh bench/curves.sh" "sh tests/pytorch/setup" \
               "sh tests/pytorch/run" "sh tests/test_readme.sh" "sh tests/run.sh"; do
    check "--help" timeout 9 $program --help
done
refused build/peak flops 1 nonsense
refused build/peak copy 1 0 nonsense
refused build/peak read 1 0 1e18
unwritten build/peak flops 1 0
for program in bench/setup bench/curves.sh tests/pytorch/setup tests/pytorch/run \
               tests/test_readme.sh; do
    refused timeout 9 sh $program --nonsense
done
refused timeout 9 sh bench/curves.sh sru.h 1 2
mkdir -p $dir/elsewhere/tests           # where CDPATH leads cd, if nothing keeps it here
check "where CDPATH has another folder tests" env CDPATH=$dir/elsewhere sh tests/run.sh --help
mkdir -p $dir/stuck/build/tests/readme/result/stuck $dir/stuck/tests   # as if it were another's
cp tests/run.sh $dir/stuck/tests
refused sh $dir/stuck/tests/run.sh readme
refused env TMPDIR=$dir/no-such-folder bash tests/test_charlm.sh build/charlm
check "learning.py has what it runs" sh -c 'make -n -W sru.h learning | grep bench/bench.c'
if have python3; then                   # it need not have torch for these checks
    for program in bench/learning.py bench/peers.py bench/peers_cuda.py bench/sweep.py \
                   tests/pytorch/compare.py examples/pytorch.py bench/contestants.py; do
        check "--help" python3 $program --help
    done
    refused python3 examples/pytorch.py --nonsense
    refused env PYTHONPATH=bench python3 -c 'import peers; peers.need("no_such_module")'
    refused env PYTHONPATH=bench python3 -c 'import peers; peers.need("build/no-such-program")'
    for isa in $(sed -n 's/^#define SRU__ISA *//p' sru.h); do
        check "sweep.py knows $isa" grep -q "^SETS.*\"$isa\"" bench/sweep.py
    done
    check "peers.py compiles by a CC of two words" env CC="env $CC" PYTHONPATH=bench python3 -c \
        'import sys, peers; peers.Peak("", sys.argv[1])' $dir
fi

# ---- make run, and Ctrl-C ------------------------------------------------------------------------

mkdir -p $dir/run/build
cp build/charlm $dir/run/build
cp sru.h $dir/run
make -n --no-print-directory run > $dir/run/recipe
# what a script starts in the background ignores Ctrl-C, unless that is set right
interrupts=$(env --default-signal=INT echo env --default-signal=INT 2> /dev/null)
if have setsid && [ -n "$interrupts" ]; then
    (cd $dir/run && exec $interrupts setsid sh recipe > out 2>&1) &
    for i in $(seq 100); do             # until it has begun
        grep -q parameters $dir/run/out && break
        sleep 0.1
    done
    kill -INT -$!
    wait $!
    sed '1,/^test /d' $dir/run/out > $dir/run/sample
    check "a training ended by Ctrl-C is sampled" [ "$(wc -c < $dir/run/sample)" -ge 600 ]
else
    echo "skipped: Ctrl-C in make run, for setsid and env --default-signal are not there"
fi

# ---- what they print -----------------------------------------------------------------------------

check "hello" build/hello
cp $dir/log.txt $dir/hello.txt
check "hello.c alone" $CC -std=c99 -DSRU_NO_DISPATCH examples/hello.c -o $dir/hello
check "hello, alone" $dir/hello
check "it prints the same" close $dir/hello.txt $dir/before.txt 1.1e-5
refused build/hello $dir/no-such-file
refused build/hello Makefile
for program in hello pytorch server; do
    refused build/$program examples/rnn.safetensors nonsense
done

cat > $dir/pytorch.txt <<'END'          # from pytorch.py
h[0] = -0.22422 -0.05287  0.13637 -0.03804 -0.04334  0.28436 ...
h[1] = -0.57592 -0.03844  0.10287 -0.19845  0.36090  0.19413 ...
h[2] = -0.31942  0.08748  0.02958 -0.14995  0.06860 -0.23542 ...
h[3] =  0.22878  0.11090  0.14396  0.01943 -0.31636  0.39499 ...
h[4] = -0.41875 -0.05352  0.06159 -0.16015  0.40959  0.22097 ...
h[5] = -0.68043  0.01350  0.06531 -0.29507  0.39416 -0.06095 ...
END
check "pytorch" build/pytorch
cp $dir/log.txt $dir/pytorch-c.txt
check "pytorch.c prints what pytorch.py does" close $dir/pytorch.txt $dir/pytorch-c.txt 1.1e-5
refused build/pytorch tests/golden/sru_basic.safetensors

# two networks: a bidirectional one as wide as pytorch.py's, and one that attends to all steps
cat > $dir/backwards.c <<'END'
#define SRU_IMPLEMENTATION
#include "../../../../sru.h"
static float weights[4096];
int main(int argc, char **argv)
{
    const sru_model rnn = { .config = { .input_size = 8, .hidden_size = 16, .num_layers = 1,
                                        .bidirectional = 1 }, .weights = weights };
    const sru_model plus = { .config = { .input_size = 8, .hidden_size = 8, .arch = SRU_ARCH_SRUPP,
                                         .projection_size = 8 }, .weights = weights };
    return argc != 3 || sru_init(weights, &rnn.config, 1) ||
           sru_save(argv[1], &rnn, "", NULL, 0, NULL) || sru_init(weights, &plus.config, 1) ||
           sru_save(argv[2], &plus, "", NULL, 0, NULL);
}
END
check "backwards.c" $CC -std=c99 -DSRU_NO_DISPATCH $dir/backwards.c -o $dir/backwards
check "backwards" $dir/backwards $dir/backwards.safetensors $dir/plus.safetensors
refused build/pytorch $dir/backwards.safetensors
refused build/server $dir/backwards.safetensors
refused build/server $dir/plus.safetensors

check "mcu" build/mcu
cp $dir/log.txt $dir/mcu.txt
check "mcu.c is close to hello.c" close $dir/hello.txt $dir/mcu.txt 2e-3

# on a board of QEMU; board.c sets up its stack and its floating-point unit
if have arm-none-eabi-gcc && have qemu-system-arm; then
    cat > $dir/board.c <<'END'
extern void _start(void);
static void reset(void)
{
    *(volatile unsigned *)0xe000ed88 |= 0xfu << 20;
    _start();
}
__attribute__((section(".vectors"))) void (*const vectors[])(void) = {
    (void (*)(void))0x20400000, reset
};
END
    check "mcu.c for a Cortex-M4" arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfloat-abi=hard \
        -mfpu=fpv4-sp-d16 $warnings -Os -DNDEBUG -Ibuild --specs=rdimon.specs \
        -ffunction-sections -Wl,--gc-sections,--section-start=.vectors=0,-u,vectors \
        examples/mcu.c $dir/board.c -o $dir/mcu.elf
    check "mcu.c on a Cortex-M4" timeout 60 qemu-system-arm -M mps2-an386 -nographic \
        -semihosting-config enable=on,target=native -kernel $dir/mcu.elf
    check "mcu.c on a Cortex-M4 is close to mcu.c" close $dir/mcu.txt $dir/before.txt 2e-6
fi

# what pack.c prints computes what the file does, whatever its config says; golden cases have more
# in their files than the network
cat > $dir/alone.c <<'END'
#include "../../../../sru.h"
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    char error[SRU_ERROR_SIZE] = "";
    size_t size;
    sru_sizes n;
    sru_model m = { .type = SRU_PLAIN };
    void *file = argc == 3 ? sru_read_file(argv[1], &size, error) : NULL;
    if (!file || sru_load_bytes(&m, NULL, file, size, "w.", error) || sru_size(&n, NULL, &m, 1, 1)
        || sru_load_bytes(&m, malloc(n.weights), file, size, "w.", error)
        || sru_save(argv[2], &m, "", NULL, 0, error)) return puts(error), 1;
    return 0;
}
END
cat > $dir/packed.c <<'END'
#include "../../../../sru.h"
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv)
{
    enum { T = 3, B = 2, ROWS = T*B };
    char error[SRU_ERROR_SIZE] = "";
    sru_model *file = argc > 1 ? sru_load(argv[1], SRU_Q8, error) : NULL;
    const sru_model *both[] = { file, &rnn };
    float *x = calloc(ROWS*RNN_INPUTS, 4), *h[2], *state[2];
    if (!file || !x) return puts(error), 1;
    for (int i = 0; i < ROWS*RNN_INPUTS; i++) x[i] = (float)(i*7 % 11)/5 - 1;
    for (int k = 0; k < 2; k++) {
        const sru_context ctx = { .error = error };
        h[k] = calloc(ROWS*RNN_OUTPUTS, 4), state[k] = calloc(B*RNN_STATE, 4);
        if (!h[k] || !state[k]) return puts("no memory"), 1;
        const sru_io io = { .T = T, .B = B, .x = x, .h = h[k], .state = state[k] };
        if (sru_forward(&ctx, both[k], &io)) return puts(error), 1;
    }
    return memcmp(h[0], h[1], ROWS*RNN_OUTPUTS*4) || memcmp(state[0], state[1], B*RNN_STATE*4);
}
END
check "sru.h for packed.c" $CC -std=c99 -DSRU_NO_DISPATCH -c tests/sru.c -o $dir/packed.o
check "alone.c" $CC -std=c99 $dir/alone.c $dir/packed.o -o $dir/alone
for model in tests/golden/*.safetensors; do
    check "$model alone" $dir/alone $model $dir/model.safetensors
    build/pack $dir/model.safetensors q8 > $dir/model.h
    check "$model as C" $CC -std=c99 $dir/packed.c $dir/packed.o -o $dir/packed
    check "$model as C computes the same" $dir/packed $dir/model.safetensors
done
check "pack, f32" build/pack examples/rnn.safetensors f32
check "pack, bf16" build/pack examples/rnn.safetensors bf16
refused build/pack $dir/no-such-file q8
refused build/pack
refused build/pack examples/rnn.safetensors q4
unwritten build/pack examples/rnn.safetensors q8

# run_model, with which make test-pytorch compares the library, needs no Python itself
cat > $dir/input.c <<'END'
#include "../../../../sru.h"
static float x[3*2*8], c0[2*32], dh[3*2*16], dc[2*32], w[4096];
int main(int argc, char **argv)
{
    const sru_model any = { .config = { .input_size = 1, .hidden_size = 1 }, .weights = w };
    const sru_tensor own[] = { { "x", { 3, 2, 8 }, x, 0, 0 }, { "c0", { 2, 32 }, c0, 0, 0 },
                               { "dh", { 3, 2, 16 }, dh, 0, 0 }, { "dc", { 2, 32 }, dc, 0, 0 } };
    for (int i = 0; i < 3*2*8; i++) x[i] = (float)(i*7 % 11)/5 - 1;
    for (int i = 0; i < 3*2*16; i++) dh[i] = 1;
    return argc != 2 || sru_save(argv[1], &any, "any.", own, 4, NULL);
}
END
cat > $dir/output.c <<'END'
#include "../../../../sru.h"
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    static const char *const names[] = { "h_packed", "dx", "grad.lst.0.weight" };
    char error[SRU_ERROR_SIZE] = "";
    size_t size;
    void *file = argc == 2 ? sru_read_file(argv[1], &size, error) : NULL;
    for (int k = 0; k < 3; k++) {
        static float data[4096];
        double sum = 0;
        sru_tensor t = { "", { 0 }, NULL, 0, 0 };
        sprintf(t.name, "%s", names[k]);
        if (!file || sru_read_tensor(&t, file, size, error)) return puts(error), 1;
        t.data = data;
        if (sru_read_tensor(&t, file, size, error)) return puts(error), 1;
        for (int i = 0; i < 4096; i++) sum += data[i]*data[i];
        if (!(sum > 0.01)) return printf("%s is 0\n", names[k]), 1;
    }
    return 0;
}
END
for program in tests/pytorch/run_model $dir/input $dir/output; do
    check "$program.c" $CC -std=c99 -DSRU__IMPLEMENTED $program.c $dir/packed.o \
        -o $dir/$(basename $program)
done
check "input" $dir/input $dir/input.safetensors
check "run_model" $dir/run_model examples/rnn.safetensors $dir/input.safetensors \
    $dir/output.safetensors
check "run_model's results" $dir/output $dir/output.safetensors

check "teach" build/teach
check "teach says so" grep "they agree" $dir/before.txt
check "audio" build/audio
refused build/teach nonsense
refused build/audio nonsense
refused build/mcu nonsense
check "server" build/server
refused build/server $dir/no-such-file

check "classify" build/classify
check "classify: too many lines are taken for others" awk '/recognised/ && $1 < 75 { n = 9 }
    /recognised/ { n++ } END { exit n != 3 }' $dir/before.txt
printf '%s\n' "too few lines" > $dir/short.txt
refused build/classify sru.h
refused build/classify sru.h $dir/no-such-file
refused build/classify sru.h $dir
refused build/classify sru.h $dir/short.txt
refused build/classify --nonsense
refused build/classify 1 2 3 4 5 6 7 8 9

check "train" build/train sru.h $dir/train.safetensors
check "the loss falls" awk '/bits/ { if (!first) first = $3; last = $3 }
                            END { exit !(last > 0.1 && last < 0.6*first) }' $dir/before.txt
check "train on seven threads" env OMP_NUM_THREADS=7 build/train sru.h
check "hello runs what train saved" build/hello $dir/train.safetensors
refused build/train $dir/no-such-file
refused build/train $dir
refused build/train sru.h $dir
refused build/train sru.h --nonsense
refused build/train sru.h $dir/model nonsense
refused build/train sru.h $dir/no-such-folder/model
refused build/train $dir/train.safetensors $dir/train.safetensors
cp sru.h $dir/text.txt
refused build/train $dir/text.txt $dir/../$(basename $dir)/text.txt
check "the text is as it was" cmp sru.h $dir/text.txt
for program in hello pytorch mcu teach audio server classify train; do
    unwritten build/$program
done

# ---- in a browser, for which Node.js stands in ---------------------------------------------------

cat > $dir/browser.mjs <<'END'          # MODEL PRIME LENGTH TEMPERATURE: what charlm sample writes
import { readFileSync } from 'node:fs';
import { open } from '../../../browser/browser.mjs';
const [model, prime, length, temperature] = process.argv.slice(2);
const read = path => Uint8Array.from(readFileSync(path)).buffer;
const bits = x => BigInt.asUintN(64, x);
let seed = 1n;
function random()                       // charlm's uniform()
{
    let z = seed = bits(seed + 0x9e3779b97f4a7c15n);
    z = bits((z ^ z >> 30n) * 0xbf58476d1ce4e5b9n);
    z = bits((z ^ z >> 27n) * 0x94d049bb133111ebn);
    return Number((z ^ z >> 31n) >> 11n) / 2**53;
}
try {
    const lm = await open(read('build/browser/browser.wasm'), read(model));
    const text = lm.text(prime, Number(temperature), random);
    console.log(prime + Array.from({ length }, () => text.next().value).join(''));
} catch (error) {
    console.error(error.message);
    process.exitCode = 1;
}
END
cat > $dir/page.mjs <<'END'             # MODEL STATUS: what the page says when MODEL is chosen, of
import { readFileSync, writeFileSync } from 'node:fs';      // a server that answers with STATUS
const [model, status] = process.argv.slice(2);
const script = readFileSync('build/browser/index.html', 'utf8').match(/<script.*?>(.*)<.script>/s);
const element = { files: [new Blob([readFileSync(model)])], addEventListener() { },
                  set textContent(text) { console.log(text); } };
globalThis.document = { getElementById: () => element, forms: [element] };
globalThis.fetch = async path => new Response(readFileSync('build/browser/' + path), { status });
writeFileSync(process.argv[1] + '.mjs', script[1].replace('./', '../../../browser/'));
import(process.argv[1] + '.mjs');
END
browse() { node --no-warnings $dir/browser.mjs "$@"; }

echo 'int main(void) { return 0; }' > $dir/try.c
if clang --target=wasm32-wasi $dir/try.c -o $dir/try 2> /dev/null && have node; then
    check "make browser" make browser
    for arch in sru srupp; do
        model=$dir/browser_$arch.safetensors
        check "a model of charlm" build/charlm train sru.h --steps 60 --arch $arch --model $model
        for hot in 0 0.4; do
            check "sample" build/charlm sample $model --prime "if (" --length 60 --temperature $hot
            cp $dir/log.txt $dir/sample.txt
            check "the browser" browse $model "if (" 60 $hot
            check "it writes what charlm does" cmp $dir/sample.txt $dir/before.txt
        done
    done
    check "the browser runs what train saved" browse $dir/train.safetensors "if (" 20 0
    refused browse Makefile x 1 0
    refused browse examples/rnn.safetensors x 1 0
    check "the page" node --no-warnings $dir/page.mjs $dir/train.safetensors 200
    check "it is ready" grep -x ready $dir/before.txt
    check "the page without browser.wasm" node --no-warnings $dir/page.mjs Makefile 404
    check "it asks for make browser" grep "run make browser" $dir/before.txt
else
    echo "skipped: the browser's example, without clang for wasm32-wasi or Node.js"
fi

# ---- the benchmarks ------------------------------------------------------------------------------

json='\{"case": "[a-z]+[ 0-9]+( --[a-z]+( [a-z0-9]+)?)*", "threads": [0-9]+, '
json="$json"'"isa": "[a-z0-9]+", "ns": [0-9.]+, '
json="$json"'"ns_min": [0-9.]+, "g(flops|bytes)": [0-9.e+-]+, "bytes": [0-9]+\}'
for run in "linear 10 20 30" "scan 5 2 20" "layer 5 2 20 2" "train 5 2 20 2" "stream 20 2" \
           "layernorm 10 20" "attention 10 2 3 4" "srupp 9 2 16 8 2 --heads 2" \
           "srupp 9 2 16 8 2 --train" "linear 10 20 30 --type bf16" "stream 20 2 --type q8" \
           "layer 5 2 20 2 --threads 2" "scan 5 2 20 --isa scalar"; do
    check "bench" build/bench $run --seconds 0 --json
    check "its JSON: $run" grep -Eqx "$json" $dir/before.txt
done
check "bench" build/bench linear 10 20 30 --type q8 --seconds 0 --json
check "its case has its options" grep -q '"case": "linear 10 20 30 --type q8"' $dir/before.txt
for run in "train 4 1 8 1" "srupp 4 1 8 8 1 --train"; do
    check "bench $run --dropout" build/bench $run --dropout 0.2 --seconds 0 --json
done
for window in "" "--window 1000"; do    # in training, of 9 steps, it sees only 9 of the 1000
    check "bench" build/bench srupp 9 2 16 8 2 --train $window --seconds 0 --json
    tr -d , < $dir/log.txt | sed 's/.*"ns": \([^ ]*\).*"gflops": \([^ ]*\).*/\1 \2/'
done > $dir/flops.txt
check "a window counts no more than there is" awk '{ flops[NR] = $1*$2 }
    END { off = flops[2]/flops[1] - 1; exit !(off < 0.01 && off > -0.01) }' $dir/flops.txt
check "bench, all cases" build/bench --seconds 0 --threads 1
refused build/bench linear 10 20
refused build/bench linear 10 20 0
refused build/bench scan 1073741824 1073741824 4
for size in x 1e3 3.7 2k -4 '30 40'; do refused build/bench linear 10 20 $size; done
refused build/bench nothing 1
refused build/bench stream 20 2 --isa none
refused build/bench stream 20 2 --threads
refused build/bench stream 20 2 --seconds x
refused build/bench stream 20 2 --threads 1.5
refused build/bench stream 20 2 --heads 2
refused build/bench scan 5 2 20 --type q8
refused build/bench srupp 9 2 16 8 2 --train --type q8
refused build/bench srupp 9 2 16 8 2 --dropout 0.2
refused build/bench stream 20 2 --fast
unwritten build/bench stream 20 2 --seconds 0 --json

if have gnuplot; then
    mkdir -p $dir/curves/bench $dir/curves/build
    cp bench/curves.sh $dir/curves/bench
    cp build/charlm $dir/curves/build
    check "curves.sh, a moment" sh $dir/curves/bench/curves.sh sru.h 0.01
    check "it draws both" grep "SRU++" $dir/curves/build/curves.svg
fi

finish
