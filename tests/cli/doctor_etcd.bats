# pawl doctor of etcd: clusters of its own, on the loopback.
load helper
setup() {
    command -v etcd >/dev/null && command -v etcdctl >/dev/null || skip "no etcd here"
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    PAWL=${PAWL_BIN:-$(readlink -f "$BATS_TEST_DIRNAME/../../build/cli/pawl")}
    pids=()
    export ETCDCTL_API=3
    version=$(etcd --version | sed -n 's/^etcd Version: //p')
    case $version in 3.[0-3].* | 3.4.[0-9] | 3.4.[12][0-9] | 3.4.30 | 3.5.[0-9] | 3.5.1[0-2]) usual="E01 warning" ;; esac
}
teardown() {
    for pid in "${pids[@]}"; do kill -CONT "$pid"; kill -KILL "$pid" && wait "$pid" || true; done 2>/dev/null
}

# cluster N [OPTION...]: $url names all of them, $port[i] is the i-th, ${member[i]} its pid. Begun anew with other ports if
# somebody took one of them meanwhile.
cluster() { for _ in 1 2 3; do try_cluster "$@" && return; done; return 1; }
try_cluster() {
    local n=$1 i peers=() all= host=${host:-} # empty: an address for each
    shift
    local data=$PWD/cluster${#pids[@]}-m
    port=() member=() url=etcd://
    for ((i = 0; i < n; i++)); do
        port[i]=$(free_port) peers[i]=$(free_port)
        at[i]=${host:-127.0.0.$((i + 1))}
        all+="m$i=http://127.0.0.1:${peers[i]},"
        url+="${at[i]}:${port[i]},"
    done
    url=${url%,}
    for ((i = 0; i < n; i++)); do
        etcd --name "m$i" --data-dir "$data$i" --listen-client-urls "http://${at[i]}:${port[i]},http://127.0.1.$i:${port[i]}" \
            --advertise-client-urls "http://${at[i]}:${port[i]}" --listen-peer-urls "http://127.0.0.1:${peers[i]}" \
            --initial-advertise-peer-urls "http://127.0.0.1:${peers[i]}" --initial-cluster "${all%,}" --log-level error "$@" \
            >/dev/null 2>&1 3>&- &
        member[i]=$!
        pids+=($!)
    done
    for ((i = 0; i < n; i++)); do until_ok 60 ctl "$i" endpoint health || return 1; done
}
ctl() { etcdctl --endpoints "${at[$1]}:${port[$1]}" --command-timeout 30s "${@:2}"; } # MEMBER WORD...

@test "a good cluster is fine; what the URL, the ttl and the parameters give up" {
    cluster 3 --heartbeat-interval 300 --election-timeout 3000
    planted "etcd: (nothing)" "" -w 60s "$url"
    run pawl doctor -w 60s "$url"
    [ "$status" = "$([ -z "${usual-}" ]; echo $?)" ]
    in_output "E14 renewal"
    in_output "cost    a lock: 1 key"
    in_output "        etcdctl role grant-permission locks readwrite --prefix=true /pawl/"
    run pawl doctor --guarantees --json "$url"
    over=yes
    [ -z "${usual-}" ] || over=if
    [ "$(jq -r .kept <<<"$output" | tr '\n' ' ')" = "yes no $over - yes yes yes yes " ]
    planted "etcd: the URL names one of three members" "E04 warning" -w 60s "etcd://127.0.0.1:${port[0]}"
    twice=etcd://127.0.0.1:${port[0]},127.0.1.0:${port[0]},127.0.0.2:${port[1]}
    planted "etcd: two addresses of the URL lead to one member" "E04 warning E12 warning" -w 60s "$twice"
    run -1 pawl doctor -w 60s "$twice"
    in_output "E04  endpoints: the URL names 2, the cluster has 3"
    in_output "E12  independence: 2 of 3 endpoints are one member"
    planted "etcd: ttl 3 s, the cluster's least is 5 s" "+E06 warning" -w 60s -t 3s "$url"
    planted "etcd: token=revision" "+E08 warning" -w 60s "$url?token=revision"
    planted "etcd: a user, but authentication is off" "E10 warning" -w 60s "${url/etcd:\/\//etcd://app:secret@}"
    planted "any: correctness is asked of what may grant twice" "C05 unsafe" -w 60s --for correctness "$url"
    kill -KILL "${member[2]}"
    until_ok 60 ctl 0 endpoint health # it may have been the leader
    planted "etcd: a member is down" "+E03 warning" -w 60s "$url"
    kill -STOP "${member[1]}"
    run --separate-stderr pawl doctor -w 8s "$url"
    [ "$status" = 2 ] || [ "$status" = 120 ]
    [[ $output != *"E07 leader"* ]] # among what is well
    row "etcd: two of three members are down" "exit $status"
}

@test "one member, two members, a full store, a slow way" {
    cluster 1 --quota-backend-bytes 400000
    pawl run -u "$url" warm true
    head -c 100000 /dev/zero | tr '\0' x >value
    fill() { ctl 0 put k <value; ctl 0 alarm list | grep NOSPACE; }
    until_ok 60 fill
    planted "etcd: the space quota is used up" "+E05 unsafe" -w 20s "$url"
    cluster 1
    handle=$(pawl hold -d -u "$url" broken)
    run -0 pawl break -u "$url" broken
    in_output "free now; its holder is told at once, or at its first renewal if"
    pawl release "$handle" || true
    planted "etcd: one member" "E02 warning" -w 60s "$url"
    planted "etcd: ttl 2 s" "+E06 warning" -w 60s -t 2s "$url"
    slow_way "${port[0]}" 300
    planted "etcd: a member that needs 0.3 s for an answer, ttl 5 s" "+E11 warning" -t 5s -w 60s "etcd://127.0.0.1:$slow"
    cluster 2
    planted "etcd: two members" "+E02 warning" -w 60s "$url"
    host=127.0.0.1 cluster 2
    planted "etcd: all members on one host" "+E12 warning" -w 60s "$url"
}

@test "versions: an old one, two at once" {
    usual=
    old=$(sed 's/^3\.[0-9]/3.3/' <<<"$version") new=$(sed 's/^3\.[0-9]/3.9/' <<<"$version")
    [ ${#old} = ${#version} ] || skip "a version that no other of the same length stands for: $version"
    cluster 1
    slow_way "${port[0]}" 0 "$version" "$old"
    planted "etcd: version 3.3" "+E01 warning" -w 60s "etcd://127.0.0.1:$slow"
    run -1 pawl doctor -w 60s "etcd://127.0.0.1:$slow"
    in_output "pawl was never tried on it"
    slow_way "${port[0]}" 0 "$version" "$new"
    planted "etcd: another version at another endpoint" "+E01 warning" -w 60s "$url,127.0.0.1:$slow"
}

@test "a leader that wakes up may end live leases" {
    woken=$(sed 's/^3\.[0-9]\.[0-9]*/3.4.30/' <<<"$version")
    [ ${#woken} = ${#version} ] || skip "a version that 3.4.30 is not as long as: $version"
    usual=
    cluster 1
    slow_way "${port[0]}" 0 "$version" "$woken"
    planted "etcd: 3.4.30, whose leader may end live leases when it wakes up" "+E01 warning" -w 60s "etcd://127.0.0.1:$slow"
    run -1 pawl doctor -w 60s "etcd://127.0.0.1:$slow"
    in_output "may end live leases when it wakes up"
}

@test "two clusters in one URL, a proxy that carries no renewals, and nobody there" {
    cluster 1
    one=$url
    cluster 1
    planted "etcd: endpoints of two clusters" "+E13 unsafe" -w 60s "$one,${url#etcd://}"
    run -2 pawl doctor -w 60s "$one,${url#etcd://}"
    in_output "E13  cluster: another one at ${url#etcd://}"
    way=$(free_port)
    etcd grpc-proxy start --endpoints="${url#etcd://}" --listen-addr="127.0.0.1:$way" >/dev/null 2>&1 3>&- &
    pids+=($!)
    until_ok 60 etcdctl --endpoints "127.0.0.1:$way" get x
    planted "etcd: a grpc-proxy" "+E14 unsafe" -w 60s "etcd://127.0.0.1:$way"
    kill -STOP "${member[0]}"
    refused 120 "etcd: the only member is stopped" "not answer" -w 4s "$url"
}

@test "a member that does not vote" {
    cluster 1
    learner=$(free_port) peer=$(free_port)
    ctl 0 member add new --learner --peer-urls "http://127.0.0.1:$peer" | grep '^ETCD_INITIAL_CLUSTER=' >new
    . ./new
    etcd --name new --data-dir new.etcd --listen-client-urls "http://127.0.0.2:$learner" \
        --advertise-client-urls "http://127.0.0.2:$learner" --listen-peer-urls "http://127.0.0.1:$peer" \
        --initial-advertise-peer-urls "http://127.0.0.1:$peer" --initial-cluster "$ETCD_INITIAL_CLUSTER" \
        --initial-cluster-state existing --log-level error >/dev/null 2>&1 3>&- &
    pids+=($!)
    until_ok 60 etcdctl --endpoints "127.0.0.2:$learner" endpoint status
    planted "etcd: the URL names a member that does not vote" "+E04 warning" -w 60s "$url,127.0.0.2:$learner"
}

@test "leaders that change" {
    cluster 3 --heartbeat-interval 300 --election-timeout 3000
    pawl run -u "$url" warm true
    # for ever: whoever does not lead is to lead
    while for i in 0 1 2; do
        id=$(ctl "$i" endpoint status -w simple | cut -d, -f2)
        for j in 0 1 2; do [ "$j" = "$i" ] || ctl "$j" move-leader $id || true; done
    done; do :; done >/dev/null 2>&1 3>&- &
    pids+=($!)
    changes() { pawl doctor -w 60s --json "$url" | grep '"E07","level":"warning"'; }
    until_ok 120 changes
    row "etcd: the leader changes again and again" "E07 warning"
}

@test "logins and rights: those of --acl are enough" {
    cluster 3 --heartbeat-interval 300 --election-timeout 3000
    ctl 0 user add root:root
    ctl 0 role add root
    ctl 0 user grant-role root root
    pawl doctor --acl "${url/etcd:\/\//etcd://app@}" | sed "s/etcdctl/& --endpoints 127.0.0.1:${port[0]}/g; s/user add app/&:secret/" >rights
    [ "$(wc -l <rights)" = 3 ]
    sh -e rights
    ctl 0 auth enable
    planted "etcd: (nothing; the rights of --acl and no more)" "" -w 60s "${url/etcd:\/\//etcd://app:secret@}"
    refused 120 "etcd: a wrong password" "authentication failed" "${url/etcd:\/\//etcd://app:wrong@}"
    planted "etcd: a login is needed, and none is given" "+C01 unsafe" -w 20s "$url"
    planted "etcd: the same" "+E10 unsafe" -w 20s "$url"
    planted "etcd: no right to another prefix" "+C01 unsafe" -w 20s "${url/etcd:\/\//etcd://app:secret@}/other/"
}

@test "over a network without TLS" {
    [ "$(id -u)" = 0 ] && command -v ip >/dev/null && unshare -n true 2>/dev/null || skip "needs root and network namespaces"
    unshare -n bash -uc "ip link set lo up; ip address add 10.99.0.1/32 dev lo
        etcd --data-dir far --listen-client-urls http://10.99.0.1:2379 --advertise-client-urls http://10.99.0.1:2379 \
            --listen-peer-urls http://127.0.0.1:2380 >/dev/null 2>&1 3>&- &
        for i in {1..600}; do etcdctl --endpoints 10.99.0.1:2379 endpoint health 2>/dev/null && break; sleep 0.1; done
        '$PAWL' doctor --json -w 60s etcd://10.99.0.1 >all
        kill -KILL \$!; wait \$!" || true
    [ "$(jq -r '"\(.id) \(.level)"' all | grep -v ' ok$' | grep -vxF "${usual-none}" | tr '\n' ' ')" = "E02 warning E09 warning E10 warning " ]
    row "etcd: another host, no TLS" "E09 warning"
    row "etcd: another host, no login" "E10 warning"
}

@test "the table" { rows 22; }
