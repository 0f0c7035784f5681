# Commands that go on for longer than a login's token lives, as a user whose role has nothing but the locks' prefix. The
# server forgets a token after a second in which it was not used, so nearly each question of theirs meets one that ran out.
# (A password is cheap to check there: who is to be tested is not how fast that is.)
load helper
ctl() { ETCDCTL_API=3 etcdctl --command-timeout=20s --endpoints="127.0.0.1:$PAWL_TEST_ETCD_PORT" "$@" >/dev/null; }
setup_file() {
    [ -n "${PAWL_TEST_ETCD:-}" ] || return 0
    ctl user add root:rootpw
    ctl user grant-role root root
    ctl user add app:secret
    ctl role add locks
    ctl role grant-permission locks readwrite --prefix=true /locks/
    ctl user grant-role app locks
    ctl auth enable
}
setup() {
    [ -n "${PAWL_TEST_ETCD:-}" ] || skip "no etcd here"
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    export PAWL_URL=etcd://app:secret@127.0.0.1:$PAWL_TEST_ETCD_PORT/locks/
    pids=() handle=
}
teardown() {
    [ -z "$handle" ] || pawl release "$handle" || true
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" || true; done
}
count() { grep -c "$1" "$2" || true; }
has() { [ "$(count "$1" "$2")" -ge "$3" ]; } # TEXT FILE TIMES

@test "run and hold -d keep their locks, who and ls see them, and a release succeeds" {
    handle=$(pawl hold -d -w 60s -t 10s kept)
    holder=$(pawl who --json kept | jq '.holders[0].pid')
    run -0 --separate-stderr pawl run -t 10s running -- sleep 12 # longer than a lease that nobody renews
    run -0 --separate-stderr pawl who --json kept
    [ "$(jq '.holders[0].pid' <<<"$output")" = "$holder" ]
    run -0 --separate-stderr pawl ls
    in_output kept
    pawl release "$handle"
    handle=
    run -1 --separate-stderr pawl who kept # free
}

@test "run --repeat: two take turns, each in line while its token runs out" {
    for who in one two; do
        pawl run --repeat -w 300s -t 15s turns -- sh -c "echo $who >>runs; sleep 2" 2>"$who" 3>&- &
        pids+=($!)
    done
    until_ok 240 has one runs 3
    until_ok 240 has two runs 3
    kill "${pids[@]}"
    for i in 0 1; do wait "${pids[i]}" || [ $? = 143 ]; done
    pids=()
    for who in one two; do ! grep 'etcd says' "$who" || return 1; done
}

@test "watch: each question meets a token that ran out, and changes are seen" {
    pawl watch --every 3s seen >changes 2>&1 3>&- &
    pids+=($!)
    until_ok 60 test -s changes
    for i in 1 2; do
        handle=$(pawl hold -d -w 60s -t 10s --label "holder $i" seen)
        until_ok 60 has "holder $i" changes 1
        pawl release "$handle"
        handle=
        until_ok 60 has free changes "$((i + 1))"
    done
    ! grep 'etcd says' changes
}

@test "what the role does not have is refused by name" {
    run -120 --separate-stderr pawl who -u "${PAWL_URL/locks/elsewhere}" n
    in_stderr "looking at 'n': etcd says: etcdserver: permission denied"
    in_stderr "the role needs readwrite on the prefix /elsewhere/"
    run -120 --separate-stderr pawl ls -u "${PAWL_URL/locks/elsewhere}"
    in_stderr "listing the locks: etcd says: etcdserver: permission denied"
}
