#!/usr/bin/env bash
# Tests the language model program from outside: what it writes, repeats, refuses and survives.
case ${1-} in
--help) echo "usage: test_charlm.sh CHARLM    the program, such as build/charlm"; exit 0 ;;
"")     echo "test_charlm.sh: the program to test must be given" >&2; exit 1 ;;
esac
[ $# = 1 ] || { echo "test_charlm.sh takes one program: see --help" >&2; exit 1; }
[ -x "$1" ] || { echo "test_charlm.sh: there is no program $1: build it first" >&2; exit 1; }
unset CDPATH                        # with it, cd may go elsewhere, and print where
charlm=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
header=$(cd "$(dirname "$0")/.." && pwd)/sru.h
export OMP_WAIT_POLICY=passive      # where cores are shared, threads that spin make all slow

folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
head -c 60000 "$header" > text
passed=0 failed=0

# check NAME COMMAND...: the command must succeed.
check()
{
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "${BASH_SOURCE[0]}:${BASH_LINENO[0]}: $name: failed: $*"
    fi
}

# refuses PATTERN ARGUMENTS...: the program must fail, with one sentence that matches the pattern.
refuses()
{
    local pattern=$1 status
    shift
    timeout 20 "$charlm" "$@" > out 2> err
    status=$?
    if [ $status = 1 ] && [ "$(wc -l < err)" = 1 ] && grep -q -e "$pattern" err; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "${BASH_SOURCE[0]}:${BASH_LINENO[0]}: charlm $*: exit $status, not 1 with '$pattern':"
        sed 's/^/    /' err
    fi
}

ends_with_test() { tail -n 1 "$1" | grep -qx 'test [0-9]\.[0-9]\{4\} bits per character'; }
below()          { awk -v limit="$2" '{ last = $2 } END { exit !(last < limit) }' "$1"; }
same_test()      { [ "$(tail -n 1 "$1")" = "$(tail -n 1 "$2")" ]; }
differ()         { ! cmp -s "$1" "$2"; }
train()          { "$charlm" train text --hidden 48 --layers 2 --batch 8 --length 32 "$@"; }

# training, and what it leaves
train --steps 40 --threads 1 --model one.safetensors > one
check "training succeeds"                      [ $? = 0 ]
check "last line of training"                  ends_with_test one
check "it learns: below 5.5 bits of 8"         below one 5.5
check "plain lines in a pipe"                  [ "$(tr -cd '\r' < one | wc -c)" = 0 ]
check "they fit in 80 columns"                 awk '/%/ && length > 79 { exit 1 }' one
check "one says that all is done"              [ "$(grep -c '^100 %' one)" = 1 ]
check "loss curve: a title and lines"          [ "$(wc -l < one.safetensors.csv)" -gt 1 ]
check "loss curve: four columns" \
      awk -F, 'NF != 4 { bad = 1 } END { exit bad }' one.safetensors.csv
check "nothing else is left"                   [ -z "$(ls | grep -v -e '^text$' -e '^one')" ]

"$charlm" eval one.safetensors text --threads 1 > eval1
check "eval repeats the figure of training"    same_test one eval1
"$charlm" eval one.safetensors text --threads 2 > eval2
check "eval on 2 threads"                      cmp eval1 eval2

# weights in fewer bits
near()           # FILE FILE LIMIT: the figures of their last lines differ, by less than the limit
{
    tail -qn 1 "$1" "$2" |
        awk -v limit="$3" '{ d = $2 - d } END { exit !(NR == 2 && d*d < limit*limit) }'
}
for type in f32 bf16 q8; do
    "$charlm" eval one.safetensors text --type $type > eval_$type
    "$charlm" sample one.safetensors --type $type --length 5000 --temperature 1 > sample_$type
done
check "packed in float32: the same figure"     cmp eval1 eval_f32
check "in bfloat16: nearly the same"           near eval1 eval_bf16 0.01
check "in int8: not far"                       near eval1 eval_q8 0.03
check "bfloat16 is not float32"                differ sample_f32 sample_bf16
check "nor is int8"                            differ sample_f32 sample_q8
"$charlm" sample one.safetensors --type q8 --length 50 > q8_sample
check "a sample by weights in int8"            [ "$(wc -c < q8_sample)" = 51 ]

# the same bytes from the same seed
train --steps 40 --threads 2 --model two.safetensors > two
check "2 threads write the bytes of 1"         cmp one.safetensors two.safetensors
train --steps 40 --threads 2 --seed 2 --model seed2.safetensors > seed2
check "another seed, other bytes"              differ one.safetensors seed2.safetensors
train --steps 40 --threads 2 --dropout 0.3 --model drop.safetensors > drop
train --steps 40 --threads 1 --dropout 0.3 --model drop2.safetensors > drop2
check "dropout changes the training"           differ one.safetensors drop.safetensors
check "dropout: 1 thread writes the bytes of 2" cmp drop.safetensors drop2.safetensors

# products of bfloat16, if this machine and build have them
train --steps 40 --threads 2 --type bf16 --model half.safetensors > half
train --steps 40 --threads 1 --type bf16 --model half2.safetensors > half2
check "bfloat16: 1 thread writes the bytes of 2" cmp half.safetensors half2.safetensors
check "bfloat16 learns as much"                near one half 0.05
if grep -q _bf16 half; then
    check "bfloat16 is not float32"            differ one.safetensors half.safetensors
else
    check "without bfloat16 floats are multiplied" cmp one.safetensors half.safetensors
fi
train --seconds 0.3 --model seconds.safetensors > seconds
check "training by the clock"                  ends_with_test seconds

# SRU++: attention across batches in training, and through rings in evaluation and sampling. Its
# factor alpha begins at 0, and grows enough in 90 steps only at a high learning rate
pp() { train --arch srupp --steps 90 --lr 0.03 --projection 16 --window 20 "$@"; }
pp --threads 1 --model pp.safetensors > pp
check "training of SRU++ succeeds"             [ $? = 0 ]
check "SRU++ learns: below 5.5 bits of 8"      below pp 5.5
check "SRU++: its number of parameters"        grep -q '^32642 parameters,' pp
pp --threads 2 --model pp2.safetensors > pp2
check "SRU++: 2 threads write the bytes of 1"  cmp pp.safetensors pp2.safetensors
"$charlm" eval pp.safetensors text > pp_eval
check "eval repeats the figure of SRU++"       same_test pp pp_eval
"$charlm" eval pp.safetensors text --window 80 > pp_eval80
check "evaluation sees four times as far"      cmp pp_eval pp_eval80
"$charlm" eval pp.safetensors text --window 2 > pp_eval2
check "a shorter window, another figure"       differ pp_eval pp_eval2
pp --attention 1 --threads 2 --model last.safetensors > last
grep -ao 'rnn_lst.[0-9].transform_module.alpha' last.safetensors > last_alpha
check "attention in the last layer only"       grep -qx rnn_lst.1.transform_module.alpha last_alpha
check "and in no other"                        [ "$(wc -l < last_alpha)" = 1 ]
"$charlm" sample pp.safetensors --prime 'static ' --length 50 > pp_sample
check "SRU++ samples through its ring"         [ "$(wc -c < pp_sample)" = 58 ]

# going on with a model, whose sizes hold
more() { "$charlm" train text --batch 8 --length 32 --threads 1 "$@"; }
more --from one.safetensors --steps 200 --model more.safetensors > more
check "training goes on"                       [ $? = 0 ]
check "from what was learnt: it gets better"   below more "$(awk '/^test/ { print $2 }' one)"
more --from one.safetensors --steps 200 --seed 2 --model more2.safetensors > more2
check "another seed begins elsewhere"          differ more.safetensors more2.safetensors
more --from one.safetensors --steps 1 --model same.safetensors > same   # whose rate is 0
check "the model that it began with, where none was better" cmp one.safetensors same.safetensors
cp pp.safetensors pp_more.safetensors
more --from pp_more.safetensors --steps 200 --model pp_more.safetensors > pp_more
check "SRU++ goes on, in the same file"        below pp_more "$(awk '/^test/ { print $2 }' pp)"
"$charlm" eval pp_more.safetensors text > pp_more_eval
check "and sees as far as before"              same_test pp_more pp_more_eval

# sampling
sample() { "$charlm" sample one.safetensors "$@"; }
sample --prime 'static ' --length 100 --seed 7 > sample1
sample --prime 'static ' --length 100 --seed 7 --threads 2 > sample2
sample --prime 'static ' --length 100 --seed 8 > sample3
sample --prime 'static ' --length 100 --seed 7 --temperature 1 > warm
check "a sample repeats with its seed"         cmp sample1 sample2
check "another seed, another sample"           differ sample1 sample3
check "another temperature, another sample"    differ sample1 warm
check "prime, length, end of line"             [ "$(wc -c < sample1)" = 108 ]
check "a sample begins with its prime"         [ "$(head -c 7 sample1)" = 'static ' ]
sample --temperature 0 --length 50 --seed 1 > cold1
sample --temperature 0 --length 50 --seed 2 > cold2
check "temperature 0 has no chance in it"      cmp cold1 cold2

# Ctrl-C
"$charlm" train text --hidden 48 --seconds 500 --model stop.safetensors > stop &
for i in $(seq 100); do                 # waits until it has begun
    [ -s stop ] && break
    sleep 0.1
done
kill -INT $!
wait $!
check "an interrupted training succeeds"       [ $? = 0 ]
check "last line of an interrupted training"   ends_with_test stop
"$charlm" eval stop.safetensors text > stop_eval
check "its model is whole"                     same_test stop stop_eval

# whatever goes wrong before there is a better model, the old one stays
old() { cp one.safetensors old.safetensors; rm -rf old.safetensors.csv; }
old
refuses "diverged"                  train text --steps 40 --lr 1000 --model old.safetensors
check "a training that diverges leaves the old model"       cmp one.safetensors old.safetensors
refuses "diverged"                  train text --steps 3 --lr 1000 --model old.safetensors
check "so does one whose last update diverged"              cmp one.safetensors old.safetensors
old; mkdir old.safetensors.csv
refuses "old.safetensors.csv"       train text --steps 40 --model old.safetensors
check "so does a loss curve that cannot be written"         cmp one.safetensors old.safetensors
old
# under nohup, all that is started ignores hang-ups, unless that is set right
hangups=$(env --default-signal=HUP echo env --default-signal=HUP 2> /dev/null)
$hangups "$charlm" train text --seconds 500 --model old.safetensors > hangup 2>&1 &
for i in $(seq 100); do
    [ -e old.safetensors.csv ] && break
    sleep 0.1
done
sleep 0.5
kill -HUP $!
wait $! 2> /dev/null
check "so does a terminal that is closed"                   cmp one.safetensors old.safetensors
"$charlm" train text --steps 1 --model once.safetensors > once
check "a training of one step leaves a model"               ends_with_test once
check "which is whole"              "$charlm" eval once.safetensors text
train --steps 40 --model "it's.safetensors" > quoted
check "a name with ' is no reason to install gnuplot"       [ "$(grep -c install quoted)" = 0 ]
train --steps 3 --model '|touch ran; cat ' > piped
train --steps 3 --model '< touch ran; cat ' >> piped
check "a name is no command"                                [ ! -e ran ]
check "a curve of such a name is not drawn"                 [ "$(grep -c 'not drawn' piped)" = 2 ]

# output that cannot be written
if [ -w /dev/full ]; then
    ln -s /dev/full full.csv
    (export -f train; export charlm; timeout 60 bash -c 'train --steps 3 --model full' > full.txt)
    check "a curve that cannot be written is no failure" ends_with_test full.txt
    check "it says so"                  grep -q "curve: full.csv (.*written" full.txt
    timeout 20 "$charlm" sample one.safetensors --length 1000000000 > /dev/full 2> err
    check "charlm sample ends where nothing can be written" [ $? = 1 ]
    for command in "eval one.safetensors text" "sample one.safetensors --length 9" --help; do
        "$charlm" $command > /dev/full 2> err
        check "charlm $command: exit status without output" [ $? = 1 ]
        check "charlm $command: it says so"                 grep -q written err
    done
else
    echo "skipped: output that cannot be written, for /dev/full is not there"
fi

# what it writes never takes the place of the text, whatever the text's name
for text in same same.csv same.svg same.sru_save; do cp text $text; done
ln -s same.csv link
for text in ./same same.csv same.svg same.sru_save link; do
    refuses "the place of the text"     train $text --model same --steps 1
done
for text in same same.csv same.svg same.sru_save; do check "$text is as it was" cmp text $text; done

# nor that of other files
echo "a,b" > data.csv
refuses "data.csv is there"             train text --model data --steps 1
check "it is as it was"                        [ "$(cat data.csv)" = "a,b" ]
rm data.csv
echo "<svg/>" > data.svg
refuses "data.svg is there"             train text --model data --steps 1
check "it is as it was"                        [ "$(cat data.svg)" = "<svg/>" ]
rm data.svg

# a limit on the size of files is as a full disk
limited()
{
    (ulimit -f 20; "$charlm" train text --steps 1 --model limited > out 2> err)
    [ $? = 1 ] && grep -q "cannot write 'limited'" err && [ ! -e limited.sru_save ]
}
check "a model larger than files may be"       limited

# on a terminal, a row of progress replaces the one before if it is no longer than 79 characters
if [ -n "$(script -qec 'echo works' /dev/null 2> /dev/null < /dev/null)" ]; then
    (export charlm; script -qec '"$charlm" train text --hidden 48 --seconds 2 --model rows' \
        /dev/null > rows.txt < /dev/null)
    check "rows of progress are there, and short" awk 'BEGIN { RS = "\r" }
        NR > 1 && !/^\n/ { rows++; if (length(row) > 79) bad = 1 } { row = $0 }
        END { exit bad || rows < 3 }' rows.txt
    (export charlm; script -qec '"$charlm" train text --seconds 9 --lr 1000 --model diverged' \
        /dev/null > rows.txt < /dev/null)
    check "an error has a row of its own" grep -q '^charlm: the training diverged' rows.txt
else
    echo "skipped: progress on a terminal, for script is not there"
fi

# help
for command in "" train eval sample; do
    "$charlm" $command --help > help
    check "charlm $command --help"             [ $? = 0 ]
    check "charlm $command --help says what"   grep -q "charlm train FILE" help
    check "and fits in 80 columns"             awk 'length > 80 { exit 1 }' help
done

name=${charlm##*/}
ln -s "$charlm" "$name"             # for the name of its folder may have a colon
(PATH=.:$PATH; "$name" train text --steps 1) > through
check "found through PATH, it writes here"     grep -q "^model: $name.safetensors," through
check "as --help says"                         grep -q "here, if it was found through PATH" help

# errors
head -c 1000 one.safetensors > cut.safetensors
head -c 2000 text > not.safetensors
: > empty
head -c 30 text > short
head -c 3000 text > long
refuses "train, eval or sample"
refuses "train, eval or sample"     retrain text
refuses "needs a FILE"              train
refuses "needs a MODEL"             sample
refuses "needs a MODEL and a FILE"  eval one.safetensors
refuses "does not take 'text'"      sample one.safetensors text
refuses "missing"                   train missing
refuses "missing"                   eval missing text
refuses "missing"                   eval one.safetensors missing
refuses "missing"                   sample missing
refuses "."                         train .
refuses "too short"                 train empty
refuses "too short"                 train short
refuses "too short"                 train long --batch 100
refuses "too short"                 eval one.safetensors short
refuses "does not take '--depth'"   train text --depth 3
refuses "does not take '--lr'"      eval one.safetensors text --lr 1
refuses "--hidden needs a value"    train text --hidden
refuses "--hidden needs .*'0'"      train text --hidden 0
refuses "--hidden needs .*'many'"   train text --hidden many
refuses "--layers needs .*'1.5'"    train text --layers 1.5
refuses "--layers needs .*'33'"     train text --layers 33
refuses "--dropout needs"           train text --dropout 1
refuses "--batch needs .*'-4'"      train text --batch -4
refuses "--length needs .*''"       train text --length ''
refuses "--lr needs .*'nan'"        train text --lr nan
refuses "--seconds needs .*'1h'"    train text --seconds 1h
refuses "--seconds and --steps"     train text --seconds 1 --steps 1
refuses "--window needs .*'0'"      train text --arch srupp --window 0
refuses "--projection needs"        train text --arch srupp --projection 0
refuses "--attention needs"         train text --arch srupp --attention -1
refuses "--arch needs sru"          train text --arch lstm
refuses "--window is for --arch"    train text --window 9
refuses "--projection is for"       train text --projection 8 --hidden 8
refuses "--attention is for"        train text --attention 1
refuses "is for a new network"      train text --from one.safetensors --layers 2
refuses "is for a new network"      train text --from pp.safetensors --arch srupp
refuses "missing"                   train text --from missing
refuses "not a model that charlm"   train text --from text
refuses "is an SRU"                 eval one.safetensors text --window 9
refuses "not a model that charlm"   eval text text
refuses "place of the text"         train text --model text
mkfifo pipe
refuses "pipe is not a file"        train text --model pipe
refuses "--type needs .*'f64'"      eval one.safetensors text --type f64
refuses "needs --cuda"              sample one.safetensors --type f16
refuses "train needs --type"        train text --type q8
if grep -q "built without it" "$charlm"; then   # not by make cuda
    refuses "built without it"      train text --cuda
else
    echo "skipped: --cuda is not refused, for make cuda built this program"
fi
refuses "q8 is not offered"         sample one.safetensors --type q8 --cuda
{ head -c -1024 one.safetensors; printf '\377%.0s' {1..1024}; } > nan.safetensors
refuses "not finite"                eval nan.safetensors text
refuses "not finite"                sample nan.safetensors
{ head -c -4 one.safetensors; printf '\377%.0s' {1..4}; } > nan.safetensors
refuses "not finite"                sample nan.safetensors
refuses "not finite"                sample nan.safetensors --temperature 0
refuses "cut.safetensors"           eval cut.safetensors text
refuses "not.safetensors"           eval not.safetensors text
refuses "empty"                     sample empty
refuses "is no model"               train text --model not.safetensors
check "what is no model is left as it was"     [ "$(head -c 2000 text)" = "$(cat not.safetensors)" ]
refuses "no/such/folder"            train text --seconds 500 --model no/such/folder/model
mkdir folder
refuses "folder"                    train text --seconds 500 --model folder

echo "$passed passed, $failed failed"
[ $failed = 0 ]
