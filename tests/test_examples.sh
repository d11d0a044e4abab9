#!/bin/sh
# Builds and runs the examples and the benchmarks, and looks at what they print. The last line is
# `N passed, N failed`. CC names the compiler; clang is used too where there is one.

. "$(dirname "$0")/check.sh"
warnings='-std=c99 -Wall -Wextra -Wpedantic -Wshadow -Werror'

refused()                       # refused COMMAND...: it fails, with one sentence on stderr only
{
    "$@" > $dir/log.txt 2> $dir/error.txt
    status=$?
    [ $status != 0 ] && [ $status -lt 126 ] && [ ! -s $dir/log.txt ] &&
        [ "$(wc -l < $dir/error.txt)" = 1 ]
    count $? "is not refused by one sentence: $*"
}

# numbers FILE: those of the lines "h[...] = ...", one a line
numbers() { sed -n 's/^h\[.*\] = *//p' $1 | tr -s ' ' '\n' | grep '[0-9]'; }

# close FILE FILE TOLERANCE: as many numbers, and none further apart
close()
{
    numbers $1 > $dir/a.txt
    numbers $2 > $dir/b.txt
    paste $dir/a.txt $dir/b.txt | awk -v tolerance=$3 '
        { off = $1 - $2; if (NF != 2 || off > tolerance || off < -tolerance) bad = 1 }
        END { exit bad || NR < 12 }'
}

# ---- they compile without a warning --------------------------------------------------------------

$CC -fopenmp -x c -o $dir/try - 2> /dev/null <<'END' && openmp=-fopenmp
int main(void) { return 0; }
END
check "pack.c" $CC $warnings -O2 examples/pack.c -o $dir/pack
$dir/pack examples/rnn.safetensors q8 > $dir/weights.h
for source in examples/*.c bench/bench.c; do
    program=$dir/$(basename $source .c)
    check $source $CC $warnings $openmp -O2 -I$dir $source -o $program -lm -lpthread
    if command -v clang > /dev/null; then
        check $source clang $warnings -fsyntax-only -I$dir $source
    fi
    if grep -q argv $source; then check "--help" $program --help; fi
done

# ---- what they print -----------------------------------------------------------------------------

check "hello" $dir/hello
cp $dir/log.txt $dir/hello.txt
refused $dir/hello $dir/no-such-file
refused $dir/hello Makefile

cat > $dir/pytorch.txt <<'END'          # from pytorch.py
h[0] = -0.22422 -0.05287  0.13637 -0.03804 -0.04334  0.28436 ...
h[1] = -0.57592 -0.03844  0.10287 -0.19845  0.36090  0.19413 ...
h[2] = -0.31942  0.08748  0.02958 -0.14995  0.06860 -0.23542 ...
h[3] =  0.22878  0.11090  0.14396  0.01943 -0.31636  0.39499 ...
h[4] = -0.41875 -0.05352  0.06159 -0.16015  0.40959  0.22097 ...
h[5] = -0.68043  0.01350  0.06531 -0.29507  0.39416 -0.06095 ...
END
check "pytorch" $dir/pytorch
cp $dir/log.txt $dir/pytorch-c.txt
check "pytorch.c prints what pytorch.py does" close $dir/pytorch.txt $dir/pytorch-c.txt 1.1e-5
refused $dir/pytorch tests/golden/sru_basic.safetensors

check "mcu" $dir/mcu
cp $dir/log.txt $dir/mcu.txt
check "mcu.c is close to hello.c" close $dir/hello.txt $dir/mcu.txt 2e-3
check "pack, f32" $dir/pack examples/rnn.safetensors f32
check "pack, bf16" $dir/pack examples/rnn.safetensors bf16
refused $dir/pack $dir/no-such-file q8

check "teach" $dir/teach
check "audio" $dir/audio
check "server" $dir/server
refused $dir/server $dir/no-such-file

check "train" $dir/train sru.h $dir/train.safetensors
check "the loss falls" awk '/bits/ { if (!first) first = $3; last = $3 }
                            END { exit !(last > 0.1 && last < 0.6*first) }' $dir/before.txt
check "hello runs what train saved" $dir/hello $dir/train.safetensors
refused $dir/train $dir/no-such-file

# ---- the benchmarks ------------------------------------------------------------------------------

json='\{"case": "[a-z]+[ 0-9]+", "threads": [0-9]+, "isa": "[a-z0-9]+", "ns": [0-9.]+, '
json="$json"'"ns_min": [0-9.]+, "g(flops|bytes)": [0-9.e+-]+, "bytes": [0-9]+\}'
for run in "linear 10 20 30" "scan 5 2 20" "layer 5 2 20 2" "train 5 2 20 2" "stream 20 2" \
           "layernorm 10 20" "attention 10 2 3 4" "srupp 9 2 16 8 2 --heads 2" \
           "srupp 9 2 16 8 2 --train" "linear 10 20 30 --type bf16" "stream 20 2 --type q8" \
           "layer 5 2 20 2 --threads 2" "scan 5 2 20 --isa scalar"; do
    check "bench" $dir/bench $run --seconds 0 --json
    check "its JSON: $run" grep -Eqx "$json" $dir/before.txt
done
check "bench, all cases" $dir/bench --seconds 0 --threads 1
refused $dir/bench linear 10 20
refused $dir/bench linear 10 20 0
refused $dir/bench linear 10 20 x
refused $dir/bench nothing 1
refused $dir/bench stream 20 2 --isa none
refused $dir/bench stream 20 2 --threads
refused $dir/bench stream 20 2 --seconds x

finish
