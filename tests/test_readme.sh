#!/bin/sh
# Compiles and runs the C code of README.md, and checks that what README.md names exists. The last
# line is `N passed, N failed`. CC names the compiler.
#
# A block ```c with `int main(` is a whole program. Any other block is a fragment: its lines that
# begin with # go to the top of a program, the rest into its main(), after the declarations below.

. "$(dirname "$0")/check.sh"

awk -v dir=$dir '
    /^```c$/  { file = dir "/" NR + 1 ".block"; next }
    /^```/    { file = "" }
    file      { print > file }' README.md

# linked only with what does not define SRU_IMPLEMENTATION
check "the library" $CC -std=c99 -DSRU_NO_DISPATCH -c tests/sru.c -o $dir/sru.o
check "the library" ar rc $dir/sru.a $dir/sru.o

ln -s "$PWD/examples" $dir/examples     # programs run in $dir, where they may write
for block in $dir/*.block; do
    line=$(basename $block .block)
    program=$dir/line-$line
    if grep -q 'int main(' $block; then
        cp $block $program.c
    else
        {
            grep '^#' $block
            cat <<'END'
#include "sru.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = 100, B = 4, I = 8, N = 16 };
static float x[T*B*I] = { 1 }, h[T*B*N];

int main(void)
{
    char error[SRU_ERROR_SIZE];
    sru_model *rnn = sru_load("examples/rnn.safetensors", SRU_F32, error);
    if (!rnn) return puts(error), 1;
    x[0] = h[0] = 0;
    {
END
            grep -v '^#' $block
            printf '    }\n    free(rnn);\n    return 0;\n}\n'
        } > $program.c
    fi
    check "README.md:$line: compiles" $CC -std=c99 -DSRU_NO_DISPATCH -Wall -Wextra -Werror -I. \
        $program.c $dir/sru.a -o $program
    check "README.md:$line: runs" sh -c 'cd "$0" && "./$1"' $dir line-$line
done
check "README.md has a whole program" grep -q 'int main(' $dir/line-*.c

for target in $({ sed -n '/^```sh$/,/^```$/p' README.md; grep -o '`make [a-z-]*`' README.md; } |
                grep -o 'make [a-z/-]*' | sort -u | sed 's/make //'); do
    check "README.md: make $target is a target" make -n $target
done
for file in $(grep -o '](\([a-zA-Z0-9._/-]*\))' README.md | tr -d ']()' | sort -u); do
    check "README.md: $file is there" [ -e $file ]
done
for status in $(sed -n 's/^ *\(SRU_E[A-Z]*\) *=.*/\1/p' sru.h); do
    check "README.md: $status is among the errors" grep -q "^| .$status" README.md
done
check "README.md has all its figures" sh -c '! grep -n "@@" README.md'

finish
