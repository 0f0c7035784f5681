#!/bin/bash
# fuzz.sh SECONDS: each fuzz target under libFuzzer, ASan and UBSan for so long; called by ./check --fuzz SECONDS.
# What is found is kept in build-fuzz/found/; new inputs that reach new code in build-fuzz/corpus/NAME.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/packages.sh
export CC=clang
build "$PWD/build-fuzz" -Dfuzz=true -Dbuildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false \
    -Dc_args=-fsanitize=fuzzer-no-link || exit 1
mkdir -p build-fuzz/found
bad=0 ran=0
for target in build-fuzz/tests/fuzz/fuzz_*; do
    [ -f "$target" ] && [ -x "$target" ] || continue
    name=${target##*/fuzz_}
    mkdir -p "build-fuzz/corpus/$name"
    ran=$((ran + 1))
    if UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$target" -max_total_time="$1" -timeout=10 -rss_limit_mb=4096 \
        -close_fd_mask=2 -max_len=4096 -print_final_stats=1 -artifact_prefix="build-fuzz/found/$name-" \
        "build-fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"build-fuzz/$name.log" 2>&1 </dev/null; then
        printf 'ok %s: %s inputs\n' "$name" "$(sed -n 's/stat::number_of_executed_units: *//p' "build-fuzz/$name.log")"
    else
        bad=$((bad + 1))
        grep -v '^#[0-9]' "build-fuzz/$name.log" | tail -n 40
        printf 'not ok %s\n' "$name"
    fi
done
[ $ran -gt 0 ] || say "fuzz: no target was built"
[ $bad = 0 ] && [ $ran -gt 0 ]
