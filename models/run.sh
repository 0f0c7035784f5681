#!/bin/bash
# run.sh NAME MODEL "spin -D flags" ["gcc flags"] ["pan flags"]: one exhaustive safety check with Spin.
#
# Prints one line: name | flags | flags | states, depth, errors | time, memory | the assertion that failed. The verifier, its
# log and the trail of an error stay in $OUT/NAME (OUT=out; trace.py reads the trail). MEM bounds the memory in MiB.
set -eu
[ $# -ge 3 ] || { sed -n '2,/^set/{s/^# \{0,1\}//p}' "$0" >&2; exit 125; }
name=$1 model=$(realpath "$2") spin_flags=$3 gcc_flags=${4:--DCOLLAPSE} pan_flags=${5:--m2000000}
mkdir -p "${OUT:=out}/$name"
cd "$OUT/$name"
rm -f ./*.trail
# shellcheck disable=SC2086 # flags are lists
{
    spin $spin_flags -a "$model" >spin.out 2>&1 || { cat spin.out; exit 125; }
    gcc -O2 -w -DSAFETY "-DMEMLIM=${MEM:-7000}" $gcc_flags -o pan pan.c
    ./pan $pan_flags >pan.out 2>&1 || true
}
awk -v head="$name | $spin_flags | $gcc_flags $pan_flags" '
    /states, stored/      { if (!states) states = $1 }
    match($0, /depth reached [0-9]+/) { depth = substr($0, RSTART + 14, RLENGTH - 14) }
    match($0, /errors: [0-9]+/)       { errors = substr($0, RSTART, RLENGTH) }
    /assertion violated|out of memory|max search depth/ { why = why $0 " " }
    /Search not completed/            { errors = errors " NOTCOMPLETE" }
    /pan: elapsed time/   { time = $4 }
    /total actual memory/ { memory = $1 }
    END { printf "%s | states %s depth %s %s | %ss %sMB | %s\n", head, states, depth, errors, time, memory, why }' pan.out
