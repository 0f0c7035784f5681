#!/bin/sh
# steady.sh STEADY: what tools/steady.py runs again, and what it does not. Its parent stands still when the test stops it.
steady=$1 n=0 marks=$(mktemp -d)
trap 'rm -rf "$marks"' EXIT
stall='kill -STOP $PPID; sleep 0.4; kill -CONT $PPID; sleep 0.1'

# case NAME STATUS RUNS SCRIPT: the script (with the number of its run in $run) ends with STATUS after so many runs
case_of() {
    n=$((n + 1))
    : >"$marks/$n"
    MARK=$marks/$n "$steady" sh -c 'echo x >>"$MARK"; run=$(wc -l <"$MARK"); '"$4" >/dev/null 2>&1
    status=$? runs=$(wc -l <"$marks/$n")
    [ $status = "$2" ] && [ "$runs" = "$3" ] || printf 'not '
    echo "ok $n - $1"
}

echo 1..4
case_of 'a failure beside a stall is run again' 0 2 "if [ \$run = 1 ]; then $stall; exit 3; fi"
case_of 'but not for ever' 3 3 "$stall; exit 3"
case_of 'what passes beside a stall is not' 0 1 "$stall; exit 0"
case_of 'a skip neither' 77 1 "$stall; exit 77"
