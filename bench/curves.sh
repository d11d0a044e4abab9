#!/bin/sh
# Trains SRU and SRU++ as language models of FILE's characters, for SECONDS each (600) on 2 threads,
# and draws both learning curves with gnuplot, in build/curves.svg.
#
#     sh bench/curves.sh FILE [SECONDS]

case $1 in
-h|--help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit ;;
''|-*)     echo "curves.sh needs a FILE: see --help" >&2; exit 2 ;;
esac
[ $# -le 2 ] || { echo "curves.sh takes a FILE and SECONDS: see --help" >&2; exit 2; }
file=$(realpath "$1") seconds=${2:-600}
unset CDPATH                        # with it, cd may go elsewhere
cd "$(dirname "$0")/.." || exit 2
[ -x build/charlm ] || { echo "curves.sh: first run: make build/charlm" >&2; exit 2; }
gnuplot --version > /dev/null || { echo "curves.sh: gnuplot must be installed" >&2; exit 2; }

# train NAME OPTIONS...: the options are the best that were found for it in that time
train()
{
    name=$1; shift
    echo "== $name: $*"
    build/charlm train "$file" --seconds "$seconds" --threads 2 --model build/"$name".safetensors \
        "$@" | tee build/"$name".txt
    grep -q '^test' build/"$name".txt || exit 1
}
train sru   --arch sru   --layers 4 --hidden 256 --lr 0.008 --dropout 0.05
train srupp --arch srupp --layers 4 --hidden 256 --lr 0.008 --projection 128 \
            --attention 2

# title NAME WHAT: prints WHAT, and after it the figure of the test
title() { echo "$2: on the test text $(sed -n 's/^test \([0-9.]*\).*/\1/p' build/"$1".txt)"; }
gnuplot <<END && echo "build/curves.svg"
set terminal svg size 800,500 background 'white'
set output 'build/curves.svg'
set datafile separator ','
set grid
set title 'validation while training, 2 threads, by the clock'
set xlabel 'seconds'
set ylabel 'bits per character'
set xrange [0:*]
set style data linespoints
plot 'build/sru.safetensors.csv' using 1:4 lw 2 pt 7 ps 0.4 title '$(title sru SRU)', \
     'build/srupp.safetensors.csv' using 1:4 lw 2 pt 7 ps 0.4 title '$(title srupp SRU++)'
END
