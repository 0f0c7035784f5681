# pawl doctor: each planted fault is found under its id, and a good set-up is fine. Runs under `with-server redis --`.
load helper
setup() {
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    mkdir -m 700 locks
    PAWL=${PAWL_BIN:-$(readlink -f "$BATS_TEST_DIRNAME/../../build/cli/pawl")}
    pids=()
}
teardown() {
    for pid in "${pids[@]}"; do kill "$pid" && wait "$pid" || true; done
    [ -z "${PAWL_TEST_REDIS:-}" ] || {
        redis ACL DELUSER few
        redis REPLICAOF NO ONE
        redis CONFIG SET maxmemory 0 maxmemory-policy noeviction appendonly no timeout 0 maxclients 10000 min-replicas-to-write 0
        redis FLUSHALL
    }
}
redis() { redis-cli -p "$PAWL_TEST_REDIS_PORT" "$@"; }
need_redis() {
    [ -n "${PAWL_TEST_REDIS:-}" ] || skip "no redis-server"
    export PAWL_URL=$PAWL_TEST_REDIS
}
in_own_mounts() { [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || skip "needs root and mount namespaces"; }

@test "file: a good directory is fine, and the lock that was taken leaves one file" {
    here=$(mktemp -d "$(dirname "$PAWL")/doctor-XXXXXX")
    all=$(levels "file:$here") || true
    files=$(ls "$here")
    rm -r "$here"
    [ "$files" = pawl-doctor ]
    case $here in /tmp/* | /var/tmp/*) all=${all/F04 warning/} ;; esac
    all=${all/F01 warning/} # a container's overlay, or a tmpfs: so it is
    [ -z "${all// /}" ]
}

@test "file: permissions and place" {
    [[ $BATS_TEST_TMPDIR == /tmp/* ]] || skip "the tests are not below /tmp"
    planted "file: a directory below /tmp" "+F04 warning" file:locks
    chmod 1777 locks
    planted "file: everybody may write (sticky)" "+F02 warning" file:locks
    chmod 777 locks
    refused 119 "file: everybody may write (not sticky)" "locks" file:locks
    chmod 770 locks
    planted "file: a group may write, no setgid" "+F02 warning" file:locks
    chmod 2770 locks
    [[ $(levels file:locks) != *F02* ]]
    [ "$(id -u)" = 0 ] || skip "the rest needs root"
    chmod 700 locks
    chown 65534 locks
    planted "file: another user's directory" "+F02 warning" file:locks
}

@test "file: file systems, room, many files" {
    in_own_mounts
    cat >mounts <<'EOF'
levels() { "$PAWL" doctor --json "$@" | jq -r '"\(.id) \(.level)"' | grep -v ' ok$' | tr '\n' ' '; }
finds() { # WHAT DIRECTORY LEVELS
    [ "$(levels "file:$2")" = "$3" ] || { levels "file:$2"; exit 1; }
    printf '# %-62s %s\n' "file: $1" "$3" >>"$TABLE"
}
mount -t tmpfs -o size=900k,mode=700,nr_inodes=60000 tmpfs /mnt || exit 77
finds "less than 1 MiB free" /mnt "F01 warning F03 unsafe "
mount -t tmpfs -o size=200m,mode=700,nr_inodes=90 tmpfs /mnt || exit 77
finds "fewer than 100 files free" /mnt "F01 warning F03 unsafe "
mount -t tmpfs -o size=200m,mode=700,nr_inodes=60000 tmpfs /mnt || exit 77
finds "tmpfs" /mnt "F01 warning "
(cd /mnt && seq 50001 | xargs touch)
finds "more than 50,000 lock files" /mnt "F01 warning F05 warning "
mkdir -m 700 /mnt/up /mnt/work /mnt/low /mnt/merged
mount -t overlay -o lowerdir=/mnt/low,upperdir=/mnt/up,workdir=/mnt/work overlay /mnt/merged || exit 0
finds "overlay, the layer of a container" /mnt/merged "F01 warning "
EOF
    run env TABLE="$BATS_TEST_TMPDIR/table" PAWL="$PAWL" unshare -m bash mounts
    echo "$output"
    [ "$status" != 77 ] || skip "no mounts here"
    [ "$status" = 0 ]
    tee -a "$BATS_RUN_TMPDIR/doctor-table" <table >&3
}

@test "mem: nothing is asked of a service that has no doctor of its own" {
    planted "mem: (nothing: no service is there)" "C04 unseen" mem:
}

@test "everywhere: no lock can be taken, tokens ahead of the clock, correctness, a slow service" {
    pawl token advance file:locks --to $(($(date +%s%6N) + 3600000000))
    planted "any: the clock was set back an hour: tokens are ahead of it" "+C03 warning" file:locks
    mkdir -m 555 others
    if [ "$(id -u)" = 0 ]; then
        run -2 setpriv --bounding-set=-dac_override "$PAWL" doctor --json file:others
        jq -es 'map(select(.id == "C01"))[0] | .level == "unsafe" and (.seen | contains("Permission denied"))' <<<"$output"
        row "file: no right to write into the directory" "C01 unsafe"
    fi
    refused 120 "file: no such directory" "nowhere" file:nowhere
    handle=$(pawl hold -d -u file:locks pawl-doctor)
    planted "any: somebody holds the lock pawl-doctor" "+C01 unseen" -w 200ms file:locks
    pawl release "$handle"
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    handle=$(pawl hold -d pawl-doctor)
    planted "redis: (nothing: the lock pawl-doctor is held)" ""
    pawl release "$handle"
    [[ $(levels) != *C05* ]]
    planted "any: correctness is asked of what may grant twice" "C05 unsafe" --for correctness
    [[ $(levels file:locks --for correctness) != *C05* ]]
    run -2 pawl doctor --for correctness
    [[ ${lines[1]} == "good for   efficiency: yes        correctness: with a guard only"* ]]
    in_output "no guard is named"
    [[ $output != *postgresql:* ]]
    mkdir data
    printf a | pawl guard put --lock n --token 2000000000000 dir:data a
    for seal in dir:data dir:data#a dir:data#never; do
        run -0 pawl doctor --for correctness --seal "$seal"
        [[ ${lines[1]} == "good for   efficiency: yes        correctness: yes, with that guard" ]]
    done
    planted "any: (nothing: correctness, and a guard that answers)" "" --for correctness --seal dir:data
    planted "any: a guard that cannot be reached" "C05 unsafe" --for correctness --seal redis://127.0.0.1:1
    planted "any: a guard in a directory that cannot be made" "C05 unsafe" --for correctness --seal dir:gone/data
    planted "any: a guard in a file that cannot be made" "C05 unsafe" --for correctness --seal sqlite:gone/data.db#r
    : >plain
    planted "any: a guard whose directory is a file" "C05 unsafe" --for correctness --seal dir:plain
    planted "any: a guard whose directory's parent is a file" "C05 unsafe" --for correctness --seal dir:plain/data
    planted "any: a guard whose file is no database" "C05 unsafe" --for correctness --seal sqlite:"$BATS_TEST_FILENAME"
    run -2 pawl doctor --for correctness --seal dir:gone/data
    in_output "correctness: with a guard only"
    in_output "the guard's place gone/data is not there, and cannot be made: No such file or directory"
    planted "any: a guard that is not there, and a service that needs none" "+C05 unsafe" --seal dir:gone/data file:locks
    run pawl doctor --seal dir:data file:locks
    [[ ${lines[1]} == "good for   efficiency: yes        correctness: yes" ]]
    # What the first write would make is not made by doctor.
    for seal in dir:later sqlite:later.db#r; do run -0 pawl doctor --for correctness --seal "$seal"; done
    [ ! -e later ] && [ ! -e later.db ]
    run --separate-stderr -125 pawl doctor --acl --guarantees
    in_stderr "not both"
    slow_way "$PAWL_TEST_REDIS_PORT" 400
    planted "any: a service that needs 0.4 s for an answer, ttl 10 s" "+C01 warning" -t 10s -w 60s "redis://127.0.0.1:$slow"
}

@test "redis: each fault under its id, and a good set-up is fine" {
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    run -0 pawl doctor
    [[ ${lines[0]} == redis://* ]]
    [[ ${lines[1]} == "good for   efficiency: yes        correctness: with a guard only"* ]]
    [[ ${lines[2]} == "ok      C01 a lock  C02 clock"*"R12 rights"* ]]
    [[ ${lines[3]} == "cost    a lock: 1 key"*"1 more each 5s"* ]]
    [[ ${lines[4]} == "rights  ACL SETUSER app on >PASSWORD ~pawl:* &pawl:* +info"* ]]
    [ "${#lines[@]}" = 5 ]
    redis CONFIG SET maxmemory-policy allkeys-lru
    planted "redis: maxmemory-policy allkeys-lru, no maxmemory" "R03 warning"
    redis CONFIG SET maxmemory 500mb
    planted "redis: maxmemory-policy allkeys-lru" "R03 unsafe"
    run -2 pawl doctor --guarantees
    [[ ${lines[1]} == "one holder, nothing failing "*" NO   Redis may remove locks when its memory is full (R03)" ]]
    redis CONFIG SET maxmemory-policy volatile-ttl
    planted "redis: maxmemory-policy volatile-ttl" "R03 unsafe"
    run -2 pawl doctor
    [[ ${lines[1]} == "good for   efficiency: NO        correctness: NO" ]]
    redis CONFIG SET maxmemory-policy noeviction
    planted "redis: (nothing)" ""
    redis CONFIG SET maxmemory "$(redis INFO memory | sed -n 's/^used_memory:\([0-9]*\).*/\1/p' | awk '{ print int($1 * 1.08) }')"
    planted "redis: more than 90 % of maxmemory is used" "R04 warning"
    redis CONFIG SET maxmemory 0 timeout 60
    planted "redis: timeout 60: connections that rest are closed" "R09 warning"
    redis CONFIG SET timeout 0 appendfsync everysec
    planted "redis: appendfsync everysec" "R10 warning"
    run -0 pawl doctor --for efficiency
    run -1 pawl doctor
    redis CONFIG SET appendonly no
    planted "redis: appendonly no" "R05 warning"
    redis CONFIG SET appendonly yes appendfsync always maxclients 5
    for _ in 1 2 3; do exec {idle}<>"/dev/tcp/127.0.0.1/$PAWL_TEST_REDIS_PORT"; done
    planted "redis: more than 80 % of maxclients are connected" "R08 warning"
}

start_redis() { # OPTION...: another one, on $port, in the directory own
    port=$(free_port)
    mkdir -p own
    redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$PWD/own" --appendonly yes --appendfsync always "$@" >/dev/null 2>&1 3>&- &
    pids+=($!)
    until_ok 30 redis-cli -p "$port" PING
}

@test "redis: replicas, saves that fail, cluster" {
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    start_redis --replicaof 127.0.0.1 "$PAWL_TEST_REDIS_PORT"
    until_ok 30 sh -c "redis-cli -p $PAWL_TEST_REDIS_PORT INFO replication | grep -q connected_slaves:1"
    planted "redis: a replica that nobody follows" "R02 unsafe"
    run -0 pawl doctor --for efficiency
    [[ ${lines[1]} == "good for   efficiency: yes        correctness: NO" ]]
    refused 120 "redis: the address of a replica" "replica" "redis://127.0.0.1:$port"
    redis CONFIG SET min-replicas-to-write 2
    planted "redis: min-replicas-to-write 2, and one is there" "C01 unsafe R02 unsafe" -w 4s
    redis CONFIG SET min-replicas-to-write 0
    rm -r own
    start_redis
    rm -r own
    redis-cli -p "$port" BGSAVE
    until_ok 30 sh -c "redis-cli -p $port INFO persistence | grep -q rdb_last_bgsave_status:err"
    planted "redis: its directory is gone, so that it cannot save" "R06 unsafe" "redis://127.0.0.1:$port"
    start_redis --cluster-enabled yes --cluster-port "$(free_port)" # by itself it takes port + 10000, which may not exist
    refused 119 "redis: cluster mode" "luster" "redis://127.0.0.1:$port"
}

@test "redis: it loads its data for longer than anybody waits" {
    need_redis
    start_redis --rdbcompression no --appendonly no
    for i in {1..900}; do echo "SET $i $(printf "%02000d" "$i")"; done | redis-cli -p "$port" >said
    redis-cli -p "$port" SAVE
    kill "${pids[-1]}" && wait "${pids[-1]}" || true
    redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$PWD/own" --key-load-delay 100000 \
        --loading-process-events-interval-bytes 1024 >log 2>&1 3>&- &
    pids+=($!)
    until_ok 30 sh -c "redis-cli -p $port INFO persistence | grep -q '^loading:1'"
    planted "redis: it is loading its data" "+C01 unsafe R05 warning R07 warning" -w 4s "redis://127.0.0.1:$port"
}

@test "redis: a clock that is wrong, one sentinel" {
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    sentinel=$(free_port)
    printf 'port %s\nbind 127.0.0.1\nsentinel monitor m 127.0.0.1 %s 1\n' "$sentinel" "$PAWL_TEST_REDIS_PORT" >sentinel.conf
    redis-server sentinel.conf --sentinel >/dev/null 2>&1 3>&- &
    pids+=($!)
    until_ok 30 sh -c "redis-cli -p $sentinel SENTINEL get-master-addr-by-name m | grep -q 127"
    beside=$sentinel
    planted "redis: one sentinel" "R15 warning" "redis+sentinel://127.0.0.1:$sentinel/m"
    all=() three=()
    for i in 2 3 4; do # each at an address of its own
        sentinel=$(free_port)
        all+=("127.0.0.$i:$sentinel")
        printf 'port %s\nbind 127.0.0.%s 127.0.1.%s 127.0.0.1\nsentinel monitor m 127.0.0.1 %s 2\n' "$sentinel" "$i" "$i" "$PAWL_TEST_REDIS_PORT" >"sentinel$i.conf"
        redis-server "sentinel$i.conf" --sentinel >/dev/null 2>&1 3>&- &
        three+=($!) pids+=($!)
        until_ok 30 sh -c "redis-cli -h 127.0.0.$i -p $sentinel SENTINEL get-master-addr-by-name m | grep -q 127"
    done
    sentinels=redis+sentinel://${all[0]},${all[1]},${all[2]}/m
    planted "redis: (nothing: three sentinels)" "" "$sentinels"
    twice=redis+sentinel://${all[0]},${all[1]},${all[1]/127.0.0/127.0.1}/m
    planted "redis: two addresses of the URL lead to one sentinel" "R15 warning" "$twice"
    run -1 pawl doctor "$twice"
    in_output "R15  sentinels: the URL names 3, but only 2 by their ids"
    one_host=${all[*]/#127.0.0.?/127.0.0.1}
    planted "redis: three sentinels on the host of the primary" "R15 warning" "redis+sentinel://${one_host// /,}/m"
    kill "${three[2]}" && wait "${three[2]}" || true
    planted "redis: one of three sentinels is down" "R15 warning" "$sentinels"
    run -1 pawl doctor "$sentinels"
    in_output "R15  sentinels: the URL names 3; silent: ${all[2]}"
    run -1 pawl doctor "redis+sentinel://127.0.0.1:$beside,127.0.0.1:$beside,127.0.0.1:$beside/m"
    in_output "R15  sentinels: the URL names 3, but only 1 by their ids; all are on the primary's host"
    skew=$(dirname "$PAWL")/../lab/skew.so
    [ -e "$skew" ] || skip "no lab here"
    perl -e 'print pack("q", 60000)' >offset
    LD_PRELOAD=$skew PAWL_TEST_SKEW=$PWD/offset start_redis
    planted "any: the service's clock is a minute ahead" "C02 warning" "redis://127.0.0.1:$port"
}

@test "--acl: names are quoted as SQL quotes them" {
    run -0 pawl doctor --acl 'postgresql://a%22b@h/d%22%3B--'
    [ "${lines[0]}" = "CREATE ROLE \"a\"\"b\" LOGIN PASSWORD 'PASSWORD';" ]
    [ "${lines[1]}" = 'GRANT CONNECT ON DATABASE "d"";--" TO "a""b";' ]
    [ "${lines[2]}" = 'REVOKE USAGE ON SCHEMA pawl FROM PUBLIC;' ]
    [ "${lines[3]}" = 'GRANT USAGE ON SCHEMA pawl TO "a""b";' ]
    [ "$(pawl doctor --acl postgresql://postgres@h/ | tail -1)" = 'GRANT USAGE ON SCHEMA pawl TO "app";' ]
}

@test "--acl: prefixes, users and directories are quoted for the shell, or escaped for a pattern of Redis" {
    etcdctl() { printf '<%s>' "$@"; echo; }
    install() { printf '<%s>' "$@"; echo; }
    eval "$(pawl doctor --acl "etcd://o'k@h?prefix=/x%20y%27%24(z)/")" >said
    grep -qxF "<role><grant-permission><locks><readwrite><--prefix=true></x y'\$(z)/>" said
    grep -qxF "<user><add><o'k>" said
    eval "$(pawl doctor --acl "file:/srv/my%20%26%20locks")" >said
    grep -qxF '<-d><-m><2770><-g><GROUP></srv/my & locks>' said
    [ "$(pawl doctor --acl etcd://h/app/locks/ | sed -n 2p)" = 'etcdctl role grant-permission locks readwrite --prefix=true /app/locks/' ]
    run -0 pawl doctor --acl 'redis://h?prefix=a%20b%5B%2A%5C:'
    [[ $output == 'ACL SETUSER app on >PASSWORD ~a?b\[\*\\:* &a?b\[\*\\:* +info '* ]]
    run -125 pawl doctor --acl 'redis://a%20b@h'
}

@test "redis: the rights of a lock are enough; what may not be seen is said; a missing right is found" {
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    run -0 pawl doctor --acl redis://few@127.0.0.1
    rights=${output#"ACL SETUSER few on >PASSWORD "}
    [ "    ACL SETUSER app on >PASSWORD $rights" = "$(grep '^    ACL SETUSER' "$BATS_TEST_DIRNAME/../../docs/redis.md")" ]
    [ "    $(pawl doctor --acl redlock://a,b,c)" = "$(grep '^    ACL SETUSER' "$BATS_TEST_DIRNAME/../../docs/redlock.md")" ]
    # shellcheck disable=SC2086
    redis ACL SETUSER few on '>secret' $rights
    few=redis://few:secret@127.0.0.1:$PAWL_TEST_REDIS_PORT
    planted "redis: (nothing; the rights of --acl and no more)" "R09 unseen R10 unseen" "$few"
    run -0 pawl doctor "$few"
    [[ $output != *secret* ]]
    in_output "CONFIG GET timeout is not allowed to this user"
    redis ACL SETUSER few -publish
    planted "redis: no right to PUBLISH" "R09 unseen R10 unseen R11 warning R12 warning" "$few"
    redis ACL SETUSER few +publish -scan
    planted "redis: no right to SCAN" "R09 unseen R10 unseen R12 warning" "$few"
    run --separate-stderr -1 pawl doctor --json "$few"
    jq -es 'map(select(.id == "R12"))[0] | .seen == "+scan" and .why == "missing: only pawl ls needs it"' <<<"$output"
    redis ACL SETUSER few +scan -set
    planted "redis: no right to SET" "+C01 unsafe" "$few"
    missing='+evalsha +exists +incr +zrank +publish +subscribe' # all of them at once
    # shellcheck disable=SC2086
    redis ACL SETUSER few +set ${missing//+/-}
    planted "redis: six rights are missing" "+R12 unsafe" "$few"
    run --separate-stderr -2 pawl doctor --json "$few"
    jq -es --arg missing "$missing" 'map(select(.id == "R12"))[0] | .seen == $missing and .fix == "ACL SETUSER ... " + $missing' <<<"$output"
    # shellcheck disable=SC2086
    redis ACL SETUSER few $missing resetkeys '~other:*' resetchannels
    planted "redis: rights to other keys and channels only" "+R12 unsafe" "$few"
    run --separate-stderr -2 pawl doctor --json "$few"
    jq -es 'map(select(.id == "R12"))[0] | .seen == "~pawl:* &pawl:*"' <<<"$output"
    [ "$(redis EXISTS pawl:%doctor)" = 0 ]
    # shellcheck disable=SC2046
    redis ACL SETUSER few reset on '>secret' $(pawl doctor --acl "redis://few@h/3?prefix=mine:" | sed 's/.*PASSWORD //')
    planted "redis: (nothing; --acl of a database and a prefix)" "R09 unseen R10 unseen" "$few/3?prefix=mine:"
    # as a person would: the line into redis-cli
    pawl doctor --acl "redis://few@h?prefix=a%20b%5B%22x%22%5D:" | sed 's/on >PASSWORD/reset on >secret/' | redis
    planted "redis: (nothing; --acl of a prefix with blanks and brackets)" "R09 unseen R10 unseen" "$few?prefix=a%20b%5B%22x%22%5D:"
    planted "redis: rights to another prefix" "+R12 unsafe" "$few?prefix=a%20bx:"
}

@test "redis: over a network without TLS, without a password" {
    need_redis
    [ "$(id -u)" = 0 ] && command -v ip >/dev/null && unshare -n true 2>/dev/null || skip "needs root and network namespaces"
    # an address that is not the loopback's, in a network that has nobody else
    unshare -n bash -uc "ip link set lo up; ip address add 10.99.0.1/32 dev lo
        redis-server --port 7777 --bind 10.99.0.1 --protected-mode no --save '' --appendonly yes --appendfsync always --dir '$PWD' >/dev/null 3>&- &
        for i in {1..600}; do redis-cli -h 10.99.0.1 -p 7777 PING 2>/dev/null && break; sleep 0.1; done
        '$PAWL' doctor --json redis://10.99.0.1:7777 >all
        kill \$!; wait \$!" || true
    [ "$(jq -r '"\(.id) \(.level)"' all | grep -v ' ok$' | tr '\n' ' ')" = "R13 warning R14 warning " ]
    row "redis: another host, no TLS" "R13 warning"
    row "redis: another host, no password" "R14 warning"
}

@test "what is promised agrees with the README, and the costs are what they are" {
    run pawl doctor --guarantees --json file:locks
    [ "$(jq -r .kept <<<"$output" | tr '\n' ' ')" = "yes yes - yes yes yes yes yes " ]
    need_redis
    redis CONFIG SET appendonly yes appendfsync always
    promised=$(pawl doctor --guarantees --json)
    [ "$(jq -r .kept <<<"$promised" | tr '\n' ' ')" = "yes no no no yes yes yes yes yes " ]
    n=0
    while IFS='|' read -r _ promise file redis _; do # "no" here, and only here, where README says no
        promise=$(sed 's/^ *//; s/ *$//; s/^one holder, //' <<<"$promise")
        for kind in file redis; do
            [ $kind = file ] && of=$output || of=$promised
            said=$(jq -r --arg p "$promise" 'select(.promise == $p or .promise == "one holder, " + $p).kept' <<<"$of")
            [ -n "$said" ]
            case ${!kind} in *'**no**'*) [ "$said" = no ] ;; *) [ "$said" != no ] ;; esac
            n=$((n + 1))
        done
    done < <(grep -E '^\| (one holder|holder paused|service failover|clocks jump|freed after|order of)' "$BATS_TEST_DIRNAME/../../README.md")
    [ $n = 12 ]
    pawl run warm true
    before=$(redis DBSIZE) connections=$(redis CLIENT LIST | wc -l)
    "$PAWL" run costs sleep 100 3>&- &
    pids+=($!)
    until_ok 10 pawl who -q costs
    [ $(($(redis DBSIZE) - before)) = 1 ]
    [ "$(redis MEMORY USAGE pawl:costs)" -lt 260 ]
    until_ok 10 sh -c "[ \$(redis-cli -p $PAWL_TEST_REDIS_PORT CLIENT LIST | wc -l) = $((connections + 1)) ]"
}

@test "each finding that the documents name is one that doctor tells, and each has its place in the man page" {
    root=$BATS_TEST_DIRNAME/../..
    named=$(grep -ohE '\b[CFRLPE][0-9]{2}\b' "$root/docs/CHOOSING.md" | sort -u)
    [ "$(wc -l <<<"$named")" -gt 15 ]
    for id in $named; do grep -rqF "\"$id\"" "$root"/src/doctor.c "$root"/src/*/doctor.c "$root"/cli/doctor.c || { echo "no $id" && return 1; }; done
    for letter in C F R L P E; do
        last=$(cat "$root"/src/doctor.c "$root"/src/*/doctor.c "$root"/cli/doctor.c | grep -oE "\"$letter[0-9]{2}\"" | sort -u | tail -1 | tr -d '"')
        grep -q "^.It Li ${letter}01-$last" "$root/man/pawl-doctor.1" || { echo "not in the man page: $last" && return 1; }
    done
}

@test "the table" {
    need_redis
    rows 22
}
