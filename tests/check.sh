# What the test scripts share. Each begins with `. "$(dirname "$0")/check.sh"`, which answers --help
# with the comment at the script's head, goes to the top folder, and makes an empty $dir for work.

case $1 in
-h|--help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit ;;
?*)        echo "$0 takes no argument: see --help" >&2; exit 2 ;;
esac
unset CDPATH                        # with it, cd may go elsewhere
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C
CC=${CC:-cc}
CXX=${CXX:-c++}
script=tests/$(basename "$0")
dir=$(basename "$0" .sh)
dir=build/tests/${dir#test_}/work
rm -rf "$dir" && mkdir -p "$dir" || exit
passed=0 failed=0

# excerpt: prints what is shown of $dir/log.txt when a check fails
excerpt() { head -n 12 $dir/log.txt; }

# have COMMAND: succeeds if it is installed; else says that what needs it is skipped
have() { command -v ${1%% *} > /dev/null || { echo "skipped: $1 is not installed"; false; }; }

# count STATUS WHAT: counts a check, which has failed unless STATUS is 0; then says WHAT is wrong
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

# check WHAT COMMAND...: the command must succeed; before.txt has what the one before it printed
check()
{
    what=$1; shift
    [ ! -f $dir/log.txt ] || mv $dir/log.txt $dir/before.txt
    "$@" > $dir/log.txt 2>&1
    count $? "$what: $*"
}

# finish: prints the last line; its status is to be the script's exit status
finish()
{
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
}
