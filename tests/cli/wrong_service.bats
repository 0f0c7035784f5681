# What is said where another service listens than the URL names, or one with TLS where it names none: what came back, who
# it may be, and what to write. All at once, for some of them say nothing and are waited for.
load helper
setup() {
    pawl_setup
    cd "$BATS_TEST_TMPDIR"
    for server in REDIS POSTGRESQL ETCD; do
        at=PAWL_TEST_$server
        [ -n "${!at-}" ] || skip "no $server here"
    done
    redis=127.0.0.1:$PAWL_TEST_REDIS_PORT postgresql=127.0.0.1:$PAWL_TEST_POSTGRESQL_PORT etcd=127.0.0.1:$PAWL_TEST_ETCD_PORT
    pids=() n=0
}
teardown() { for pid in "${pids[@]}"; do kill "$pid" && wait "$pid" || true; done; }
certificate() {
    {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -subj /CN=authority -days 2
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout it.key -out it.csr -subj /CN=it
        printf 'subjectAltName=IP:127.0.0.1' >it.ext
        openssl x509 -req -in it.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out it.crt -days 2 -extfile it.ext
    } 2>/dev/null
}
listens() { (exec 9<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
tls_redis() { # its address is $secret
    local port
    port=$(free_port)
    redis-server --port 0 --bind 127.0.0.1 --tls-port "$port" --tls-cert-file it.crt --tls-key-file it.key --tls-ca-cert-file ca.crt \
        --tls-auth-clients no --save '' >/dev/null 2>&1 3>&- &
    pids+=($!) secret=127.0.0.1:$port
    until_ok 30 listens "$port"
}
tls_etcd() { # the same
    local port peer
    port=$(free_port) peer=$(free_port)
    etcd --data-dir etcd --listen-client-urls "https://127.0.0.1:$port" --advertise-client-urls "https://127.0.0.1:$port" \
        --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
        --initial-cluster "default=http://127.0.0.1:$peer" --cert-file it.crt --key-file it.key >/dev/null 2>&1 3>&- &
    pids+=($!) secret=127.0.0.1:$port
    until_ok 30 listens "$port"
}
http() { # speaks HTTP/1 and nothing else; its address is $page
    local port
    port=$(free_port)
    python3 -c '
import socket, sys
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    c, _ = s.accept()
    if c.recv(4096): c.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    c.close()' "$port" 3>&- &
    pids+=($!) page=127.0.0.1:$port
    until_ok 30 listens "$port"
}
# says URL TEXT...: that is begun; all_say looks at what came of it.
says() {
    local url=$1
    shift
    n=$((n + 1))
    printf '%s\n' "$url" "$@" >"wanted$n"
    { pawl run -w 0 -u "$url" n -- touch ran >"said$n" 2>&1 3>&- && echo 0 >"exit$n" || echo $? >"exit$n"; } &
    asked[n]=$!
}
all_say() {
    local i text url
    wait "${asked[@]}"
    for ((i = 1; i <= n; i++)); do
        { read -r url && while read -r text; do
            [[ $(<"said$i") == *"$text"* && $(<"exit$i") = 120 ]] ||
                { echo "$url: wanted $text, got $(<"exit$i"): $(<"said$i")" && return 1; }
        done; } <"wanted$i"
    done
    [ "$n" -gt 2 ] && [ ! -e ran ]
}

@test "etcd: where Redis, PostgreSQL, HTTP/1, or an etcd with TLS listens" {
    certificate
    tls_etcd
    http
    says "etcd://$redis" "$redis: asking for a lease: what answers there speaks as Redis does, not etcd: write redis://"
    says "etcd://$postgresql" "$postgresql: asking for a lease: the server closed the connection without a word (is it etcd that listens there?"
    says "etcd://$page" "does not speak HTTP/2: is that a client URL of etcd?"
    says "etcd://$secret" "the server closed the connection without a word" "if with TLS, write etcds://"
    all_say
}

@test "etcds: where Redis, PostgreSQL, HTTP/1, an etcd without TLS, or a Redis with it listens" {
    certificate
    tls_redis
    http
    says "etcds://$etcd?cacert=ca.crt" "the TLS handshake failed, the server closed the connection: is it etcd" "if without, write etcd://"
    says "etcds://$redis?cacert=ca.crt" "the TLS handshake did not end in time: is it etcd" "if without, write etcd://"
    says "etcds://$postgresql?cacert=ca.crt" "the TLS handshake failed, the server closed the connection: is it etcd that listens there, and with TLS?"
    says "etcds://$page?cacert=ca.crt" "the TLS handshake failed, what answers does not speak TLS: is it etcd"
    says "etcds://$secret?cacert=ca.crt" "speaks TLS, but not the protocol 'h2': is it etcd that listens there?"
    all_say
}

@test "redis: where etcd, PostgreSQL, HTTP/1, or a Redis with TLS listens; redlock says the same of one of them" {
    certificate
    tls_redis
    http
    says "redis://$etcd" "without a word (is it Redis that listens there, without TLS?)"
    says "redis://$postgresql" "without a word (is it Redis that listens there, without TLS?)"
    says "redis://$page" "what answers speaks HTTP, not the Redis protocol: if it is etcd, write etcd:// or etcds://"
    says "redis://$secret" "without a word (is it Redis that listens there, without TLS?)"
    pawl version | grep -qw redlock &&
        says "redlock://$secret,$postgresql,$page" "$secret" "without a word (is it Redis" "$page: what answers speaks HTTP"
    all_say
}

@test "rediss: where etcd, PostgreSQL, a Redis without TLS, or an etcd with it listens" {
    certificate
    tls_etcd
    says "rediss://$etcd?cacert=ca.crt" "the TLS handshake failed, the server closed the connection: is it Redis" "if without, write redis://"
    says "rediss://$postgresql?cacert=ca.crt" "the TLS handshake failed, the server closed the connection: is it Redis"
    says "rediss://$redis?cacert=ca.crt" "the TLS handshake did not end in time: is it Redis that listens there, and with TLS? if without, write redis://"
    says "rediss://$secret?cacert=ca.crt" "what answers speaks HTTP, not the Redis protocol: if it is etcd, write etcd:// or etcds://"
    all_say
}

@test "postgresql: where Redis, etcd, or either with TLS listens" {
    certificate
    tls_etcd
    says "postgresql://u@$redis/d" "PostgreSQL does not answer at $redis" "is it PostgreSQL that listens there?"
    says "postgresql://u@$etcd/d" "is it PostgreSQL that listens there?"
    says "postgresql://u@$secret/d" "closed the connection" "is it PostgreSQL that listens there?"
    tls_redis
    says "postgresql://u@$secret/d" "closed the connection" "is it PostgreSQL that listens there?"
    all_say
}
