# What the test scripts share; each begins with `. "$(dirname "$0")/check.sh"`. Answers --help with
# the comment at the script's head, goes to the top folder, and makes an empty $dir to work in.

case $1 in
-h|--help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit ;;
?*)        echo "$0 takes no argument: see --help" >&2; exit 2 ;;
esac
unset CDPATH                        # by which cd may go elsewhere
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C
CC=${CC:-cc}
CXX=${CXX:-c++}
script=tests/$(basename "$0")
dir=$(basename "$0" .sh)
dir=build/tests/${dir#test_}/work
rm -rf "$dir" && mkdir -p "$dir" || exit
passed=0 failed=0

# excerpt: what of $dir/log.txt is shown where a check fails
excerpt() { head -n 12 $dir/log.txt; }

# have COMMAND: it is installed; or says that what needs it is skipped
have() { command -v ${1%% *} > /dev/null || { echo "skipped: $1 is not installed"; false; }; }

# count STATUS WHAT
count()
{
    if [ $1 = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$script: failed: $2"
        excerpt
    fi
}

# check WHAT COMMAND...: the command succeeds; what the one before it printed is in before.txt
check()
{
    what=$1; shift
    [ ! -f $dir/log.txt ] || mv $dir/log.txt $dir/before.txt
    "$@" > $dir/log.txt 2>&1
    count $? "$what: $*"
}

# finish: the last line, and the exit status
finish()
{
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
}
