# pawl-lab list, run and report: each plain lock breaks where theory says so, each guarded one holds, on real servers.
load helper
setup() { pawl_setup && cd "$BATS_TEST_TMPDIR"; }
teardown() { [ -z "${pid:-}" ] || kill -INT "$pid" 2>/dev/null || :; }
lab() { "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" "$@"; }

# The rows of --json: as theory says, and what no guarded variant may ever do.
judge() {
    jq -e 'select(.verdict == "failed")' <<<"$1" && return 1
    jq -se 'all(.expected)' <<<"$1" >/dev/null || { jq -c 'select(.expected | not)' <<<"$1" && return 1; }
    jq -se 'all(.variant != "guarded" or (.stale_accepted == 0 and .token_regressions == 0))' <<<"$1" >/dev/null
    jq -se 'all(has("scenario") and has("variant") and has("holds") and has("overlaps") and has("stale_accepted") and
        has("stale_refused") and has("token_regressions") and has("max_gap_ms") and has("verdict"))' <<<"$1" >/dev/null
}

@test "the short set: plain locks break, guarded ones hold" {
    command -v redis-server >/dev/null || skip "no redis-server"
    SECONDS=0
    run --separate-stderr -0 lab run --quick --json --save story --report page.html
    [ -z "${PAWL_TEST_FULL:-}" ] || [ "$SECONDS" -lt 60 ]
    judge "$output"
    [ "$(jq -s 'map(select(.variant == "plain" and .verdict == "broke")) | length' <<<"$output")" = 7 ]
    [ "$(jq -s 'map(select(.variant == "guarded" and .verdict == "held")) | length' <<<"$output")" = 7 ]
    [ "$(jq -s 'map(select(.variant == "guarded") | .stale_refused) | add' <<<"$output")" -ge 6 ]
    # the page: by itself, a picture of each variant, nothing that is fetched or runs
    [ "$(grep -c 'role="img"' page.html)" = 21 ]
    ! grep -qE '<script|<link|src=|@import|url\(http' page.html || return 1
    # what was saved makes the same page, but for the time of day
    run -0 lab report story -o again.html
    diff <(sed 's/<p class="lead">.*//' page.html) <(sed 's/<p class="lead">.*//' again.html)
    run -0 lab report story --svg .
    python3 -c 'import sys, xml.dom.minidom as m; [m.parse(p) for p in sys.argv[1:]]' ./*.svg
    [ "$(ls ./*.svg | wc -l)" = 7 ]
}

@test "all scenarios" {
    [ -n "${PAWL_TEST_FULL:-}" ] || skip "PAWL_TEST_FULL=1"
    for name in $(lab list | awk '{ print $1 }'); do
        SECONDS=0
        run --separate-stderr lab run --json "$name"
        [ "$status" = 0 ] || jq -se 'all(.verdict == "skipped")' <<<"$output"
        [ "$SECONDS" -lt 40 ]
        judge "$output"
    done
}

@test "a guard that does not guard is caught" {
    command -v redis-server >/dev/null || skip "no redis-server"
    run --separate-stderr -1 env PAWL_LAB_PLANT=open-guard "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" run --json --variant guarded zombie
    [ "$(jq -r '.verdict, .stale_accepted, .expected' <<<"$output" | tr '\n' ' ')" = "broke 1 false " ]
    run --separate-stderr -1 env PAWL_LAB_PLANT=old-token "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" run --json --variant pawl partition
    [ "$(jq -r '.verdict, (.token_regressions > 0)' <<<"$output" | tr '\n' ' ')" = "broke true " ]
}

# interrupted SCENARIO SERVER: an interrupt as soon as SERVER runs.
interrupted() {
    "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" run "$1" >out 2>err 3>&- &
    pid=$!
    server() { # the pid of the first server below our stages
        for stage in $(pgrep -P "$(pgrep -P $pid)"); do pgrep -P "$stage" "$name"; done | grep -m1 .
    }
    name=$2
    until_ok 60 server
    server=$(server) dir=$(readlink "/proc/$server/cwd")
    dir=$(grep -oE '^/tmp/pawl-lab-[A-Za-z0-9]+' <<<"$dir")
    kill -INT $pid
    wait $pid && status=0 || status=$?
    [ "$status" = 130 ]
    [ ! -e "$dir" ]
    ! kill -0 "$server" 2>/dev/null
    [ -z "$(grep -la "$dir" /proc/[0-9]*/cmdline 2>/dev/null || true)" ]
}

@test "an interrupt leaves nothing behind" {
    command -v redis-server >/dev/null || skip "no redis-server"
    interrupted zombie-long redis-server
}

@test "an interrupt leaves nothing of PostgreSQL, etcd, and a Redlock of five behind" {
    [ -n "${PAWL_TEST_FULL:-}" ] || skip "PAWL_TEST_FULL=1"
    interrupted redlock-restart redis-server
    interrupted etcd-leader-cut etcd
    interrupted host-vanishes postgres
}

@test "up: a service to play with, gone after an interrupt" {
    command -v redis-server >/dev/null || skip "no redis-server"
    "${PAWL_LAB:-$BATS_TEST_DIRNAME/../../build/lab/pawl-lab}" up redlock --json >out 3>&- &
    pid=$!
    until_ok 30 test -s out
    url=$(jq -r .url out)
    [[ $url == redlock://* ]]
    run -0 pawl run -u "$url" job -- true
    run pawl doctor "$url" # what is good of each instance is told once
    grep -qE '^ok .*  L01-L06 on 5 instances  L07 quorum' <<<"$output"
    servers=$(pgrep -P "$(pgrep -P $pid)" redis-server)
    [ "$(wc -l <<<"$servers")" = 5 ]
    kill -INT $pid
    wait $pid
    ! kill -0 $servers 2>/dev/null || return 1
    run --separate-stderr -125 lab up mysql
    in_stderr "not mysql"
}

@test "what is not there is said" {
    run --separate-stderr -125 lab run vampire
    in_stderr "there is no scenario vampire"
    run --separate-stderr -125 lab run --variant holy
    in_stderr "holy"
    run --separate-stderr -125 lab run --jsno
    in_stderr "--jsno"
    echo '{"scenario":1}' >bad
    run --separate-stderr -125 lab report bad -o page.html
    in_stderr "bad:1"
    run --separate-stderr -125 lab report missing -o page.html
    in_stderr "cannot open missing"
}

@test "the man page has every option" {
    page=$BATS_TEST_DIRNAME/../../man/pawl-lab.1
    for verb in list run report torture up; do
        for option in $(lab $verb --help | grep -oE '^  --?[a-z-]*|, --[a-z-]*' | tr -d ' ,'); do
            grep -qE "^\.It Fl (. , )?${option#-}\b|^\.It Fl ${option#-} ,| , ${option#-} " "$page" || { echo "$verb: $option is not in the page" && return 1; }
        done
    done
}

@test "torture: a backend that is not there, and a guard nobody knows, are said at once" {
    run --separate-stderr -125 lab torture --backend mysql
    in_stderr "not mysql"
    run --separate-stderr -125 lab torture --backend redis --guard dog
    in_stderr "not dog"
}

@test "torture: the schedule comes of the seed alone" {
    lab torture --backend etcd --minutes 5 --seed 4 --schedule >one
    lab torture --backend etcd --minutes 5 --seed 4 --schedule >two
    lab torture --backend etcd --minutes 5 --seed 5 --schedule >three
    [ "$(wc -l <one)" -gt 100 ]
    cmp one two
    ! cmp -s one three
}

@test "torture: promises are kept, and what is planted is caught" {
    command -v redis-server >/dev/null || skip "no redis-server"
    PAWL_LAB_PLANT=old-token lab torture --backend file --minutes 0.3 --seed 1 --json >planted 2>log 3>&- &
    run --separate-stderr -0 lab torture --backend redis --minutes 0.3 --seed 1 --guard service --save history --json
    [ "$(jq -r '.verdict, .overlaps, .stale_accepted, .token_regressions, .stuck' <<<"$output" | tr '\n' ' ')" = "ok 0 0 0 0 " ]
    jq -e '.grants > 20 and .accepted > 20 and .wrongs > 3' <<<"$output"
    # the history says the same, but it does not know that a memory was lost on purpose
    [ "$(lab check --json history | jq '.faults | .token_fell + .token_repeated + .stale_write')" = 0 ]
    wait %1 && status=0 || status=$?
    [ "$status" = 1 ]
    [ "$(jq -r '.verdict, (.token_regressions > 0)' planted | tr '\n' ' ')" = "violated true " ]
}

# Where there is something to find it is found: the plain lock overlaps, an open guard takes stale writes, tokens fall.
@test "torture: each kind of violation is caught on a real server" {
    [ -n "${PAWL_TEST_FULL:-}" ] || skip "PAWL_TEST_FULL=1"
    command -v redis-server >/dev/null || skip "no redis-server"
    for plant in plain open-guard old-token; do
        PAWL_LAB_PLANT=$plant lab torture --backend redis --minutes 2 --seed 3 --json >$plant 2>>log 3>&- &
    done
    wait
    cat plain open-guard old-token
    jq -se 'all(.verdict == "violated")' plain open-guard old-token
    jq -e '.overlaps > 0' plain
    jq -e '.stale_accepted > 0 and .overlaps == 0' open-guard
    jq -e '.token_regressions > 0 and .overlaps == 0' old-token
}

@test "torture of every backend" {
    [ -n "${PAWL_TEST_FULL:-}" ] || skip "PAWL_TEST_FULL=1"
    for backend in file redis redlock postgresql etcd; do
        for guard in dir service; do
            run --separate-stderr -0 lab torture --backend $backend --minutes "${PAWL_TORTURE_MINUTES:-2}" \
                --seed "${PAWL_TEST_SEED:-1}" --guard $guard --json
            echo "$output"
        done
    done
}

@test "docs/FAILURES.md has each scenario, in the words of the program, and its picture" {
    docs=$BATS_TEST_DIRNAME/../../docs
    lab list --markdown >words
    diff words <(sed -n '/^## /,$p' "$docs/FAILURES.md" | sed '1i\\')
    for name in $(lab list | awk '{ print $1 }'); do
        python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$docs/failures/$name.svg"
    done
}

@test "the page in a browser: no wider than a phone, and it prints" {
    [ -n "${PAWL_TEST_FULL:-}" ] || skip "PAWL_TEST_FULL=1"
    command -v chromium >/dev/null || skip "no chromium"
    lab run --quick --report page.html >/dev/null
    look() { timeout 60 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$PWD/profile" "$@" 2>/dev/null; }
    sed 's#</body>#<script>document.title = document.documentElement.scrollWidth + " of " + innerWidth</script></body>#' page.html >ask.html
    for width in 500 1000; do
        look --window-size=$width,900 --dump-dom "file://$PWD/ask.html" >dom
        grep -o '<title>[0-9]* of [0-9]*' dom | head -1
        grep -qE "<title>([0-9]+) of \\1<" dom
    done
    look --print-to-pdf="$PWD/page.pdf" "file://$PWD/page.html"
    [ "$(head -c 5 page.pdf)" = %PDF- ]
    look --window-size=500,2000 --screenshot="$PWD/page.png" "file://$PWD/page.html"
    [ "$(stat -c %s page.png)" -gt 50000 ]
}
