# pawl run --metrics-dir, and what lies in ops/. What needs promtool or a Prometheus is skipped where there is none.
load helper
setup() {
    pawl_setup
    PAWL=${PAWL_BIN:-$(readlink -f "$BATS_TEST_DIRNAME/../../build/cli/pawl")}
    ops=$BATS_TEST_DIRNAME/../../ops
    cd "$BATS_TEST_TMPDIR"
    mkdir -p locks metrics
    pids=()
}
teardown() {
    for pid in "${pids[@]}"; do kill "$pid" && wait "$pid" || true; done
}
of() { sed -n "s/^$1{class=\"$2\"${3:+,$3}} //p" metrics/*.prom; } # METRIC CLASS [LABEL]: its value
holder() { # NAME: until the test is over
    "$PAWL" run "$1" sleep 100 3>&- &
    pids+=($!)
    until_ok 10 pawl who -q "$1"
}

@test "counters go on from run to run, by class, and the last run has gauges" {
    run -0 pawl run --metrics-dir metrics job:1 true
    run -3 pawl run --metrics-dir metrics job:2 sh -c 'exit 3'
    holder job:1
    run -123 pawl run -n --metrics-dir metrics job:1 true
    run -124 pawl run -w 10ms --metrics-dir metrics job:1 true
    [ "$(ls metrics)" = pawl_job.prom ]
    [ "$(of pawl_acquire_total job 'result="granted"')" = 2 ]
    [ "$(of pawl_acquire_total job 'result="busy"')" = 1 ]
    [ "$(of pawl_acquire_total job 'result="timeout"')" = 1 ]
    [ "$(of pawl_lock_held_duration_seconds_count job)" = 2 ]
    [ "$(of pawl_run_last_exit_code job)" = 3.000 ]
    now=$(date +%s) end=$(of pawl_run_last_end_timestamp_seconds job) success=$(of pawl_run_last_success_timestamp_seconds job)
    [ $((now - ${end%.*})) -lt 60 ]
    [[ "$success" < "$end" ]]
    ! grep -F 'job:1' metrics/*
}

@test "a loss and a stale write are counted" {
    run -122 pawl run --metrics-dir metrics --max-hold 100ms slow sleep 10
    [ "$(of pawl_lost_total slow 'reason="max_hold"')" = 1 ]
    printf x | pawl guard put dir:g sealed --lock sealed --token 9007199254740000 --accept-jump
    run -121 pawl run --metrics-dir metrics --seal dir:g sealed true
    [ "$(of pawl_stale_rejections_total sealed)" = 1 ]
}

@test "hold counts as run does: released, busy, lost; also in the background, from another directory" {
    : | pawl hold --metrics-dir metrics job:1 >events
    grep -q '"released"' events
    [ "$(of pawl_acquire_total job 'result="granted"')" = 1 ]
    [ "$(of pawl_run_last_exit_code job)" = 0.000 ]
    run -122 pawl hold --metrics-dir metrics --max-hold 100ms slow <> <(:)
    [ "$(of pawl_lost_total slow 'reason="max_hold"')" = 1 ]
    handle=$(pawl hold -d --metrics-dir metrics job:2 3>&-)
    run -123 pawl hold -n --metrics-dir metrics job:2 </dev/null
    [ "$(of pawl_acquire_total job 'result="busy"')" = 1 ]
    pawl release "$handle"
    granted_twice() { [ "$(of pawl_acquire_total job 'result="granted"')" = 2 ]; }
    until_ok 30 granted_twice
    : | pawl hold --metrics-dir nowhere n >events 2>warned
    grep -q '"released"' events
    grep -q "cannot write metrics into nowhere: No such file or directory; this run is not counted" warned
}

@test "everybody may read it, whatever the umask; where nothing can be written the run is what it is, with one warning" {
    umask 077
    run -0 pawl run --metrics-dir metrics n true
    [ "$(stat -c %a metrics/pawl_n.prom)" = 644 ]
    run --separate-stderr -7 pawl run --metrics-dir nowhere n sh -c 'exit 7'
    [ "$stderr" = "pawl: n: cannot write metrics into nowhere: No such file or directory; this run is not counted" ]
    run --separate-stderr -7 pawl run -q --metrics-dir nowhere n sh -c 'exit 7'
    [ -z "$stderr" ]
    mkdir metrics/pawl_m.prom # cannot be replaced: the run is what it is
    run --separate-stderr -7 pawl run --metrics-dir metrics m sh -c 'exit 7'
    in_stderr "pawl: m: cannot write metrics into metrics: "
    [ "$(ls -A metrics | tr '\n' ' ')" = "pawl_m.prom pawl_n.prom " ]
}

@test "cron with -n against a holder: nothing is printed, and it is counted" {
    holder nightly
    run --separate-stderr -123 env -i /bin/sh -c "$PAWL run -u $PAWL_URL -n --metrics-dir metrics nightly true"
    [ -z "$output$stderr" ]
    [ "$(of pawl_acquire_total nightly 'result="busy"')" = 1 ]
}

@test "what can be counted is 0 from the first run on: Prometheus sees no increase from nothing to 1" {
    pawl run --metrics-dir metrics job true
    for result in busy timeout cancelled lost unreachable denied unsafe invalid unsupported internal; do
        [ "$(of pawl_acquire_total job "result=\"$result\"")" = 0 ]
    done
    run -120 pawl run -u file:gone/locks --metrics-dir metrics job true
    [ "$(of pawl_acquire_total job 'result="denied"')$(of pawl_acquire_total job 'result="unreachable"')" != 00 ]
}

@test "many runs at once: none is lost" {
    for i in {1..30}; do pawl run --metrics-dir metrics "many:$i" true 3>&- & done
    wait
    [ "$(of pawl_acquire_total many 'result="granted"')" = 30 ]
    [ "$(ls -A metrics)" = pawl_many.prom ]
}

@test "beyond a hundred classes the rest is other" {
    for i in {1..99}; do : >"metrics/pawl_old$i.prom"; done
    for i in {1..4}; do pawl run --metrics-dir metrics "new$i" true; done
    [ "$(ls metrics | wc -l)" = 101 ]
    [ -e metrics/pawl_new1.prom ]
    [ "$(of pawl_acquire_total other 'result="granted"')" = 3 ]
}

need_promtool() { command -v promtool >/dev/null || skip "no promtool here"; }

@test "promtool finds nothing wrong with the metrics, the rules and the alerts" {
    need_promtool
    pawl run --metrics-dir metrics 'we"i\rd' true
    promtool check metrics <metrics/*.prom
    promtool check rules "$ops/rules.yml" "$ops/alerts.yml"
    cd "$ops"
    promtool test rules alerts_test.yml
}

@test "the dashboard and the rules ask for metrics that there are" {
    pawl run --metrics-dir metrics n true
    { sed -n 's/^# TYPE \([a-z_]*\) .*/\1/p' metrics/*.prom
      grep -o '"pawl_[a-z_]*", "gauge"' "$BATS_TEST_DIRNAME/../../src/metrics.c" | cut -d'"' -f2; } | sort -u >known
    [ "$(wc -l <known)" -ge 12 ]
    jq -r '.panels[].targets[].expr' "$ops/grafana.json" >expressions
    [ "$(wc -l <expressions)" -gt 12 ]
    cat expressions "$ops"/{rules,alerts}.yml | grep -oP '(?<![:\w])pawl_[a-z_]+(?![:\w])' | sed -E 's/_(bucket|sum|count)$//' | sort -u >asked
    run comm -23 asked known
    echo "$output"
    [ -z "$output" ]
    command -v promtool >/dev/null || return 0
    jq '{groups: [{name: "d", rules: [.panels[].targets[].expr | gsub("[$]__rate_interval"; "5m") | {record: "x", expr: .}] |
        to_entries | map(.value.record = "x\(.key)" | .value)}]}' "$ops/grafana.json" >dashboard.yml
    promtool check rules dashboard.yml
}

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
firing() { curl -s "http://127.0.0.1:$prometheus/api/v1/alerts" | jq -e ".data.alerts[] | select(.labels.alertname == \"$1\" and .state == \"firing\")"; }
query() { curl -sG "http://127.0.0.1:$prometheus/api/v1/query" --data-urlencode "query=$1" | jq -e '.data.result[0].value[1]'; }

@test "a real Prometheus, the textfile collector, and a contention that fires" {
    [ -n "${PAWL_TEST_FULL:-}" ] || skip "takes half a minute; see ./check --full"
    for program in prometheus prometheus-node-exporter curl; do command -v $program >/dev/null || skip "no $program here"; done
    umask 077
    exporter=$(port) prometheus=$(port)
    # 10 minutes would be a long test: seconds in their place
    sed -e 's/\[10m\]/[10s]/g; s/for: .*m$/for: 1s/' "$ops/alerts.yml" >alerts.yml
    cp "$ops/rules.yml" rules.yml
    cat >prometheus.yml <<EOF
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yml, alerts.yml]
scrape_configs: [{job_name: node, static_configs: [{targets: ['127.0.0.1:$exporter']}]}]
EOF
    prometheus-node-exporter --web.listen-address="127.0.0.1:$exporter" --collector.disable-defaults --collector.textfile \
        --collector.textfile.directory=metrics >exporter.log 2>&1 3>&- &
    pids+=($!)
    prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address="127.0.0.1:$prometheus" \
        >prometheus.log 2>&1 3>&- &
    pids+=($!)
    pawl run --metrics-dir metrics nightly true
    until_ok 30 query 'pawl_acquire_total{class="nightly",result="granted"}'
    ! firing PawlContention || return 1
    holder nightly
    until_fires() { pawl run -n --metrics-dir metrics nightly true; firing PawlContention; }
    until_ok 60 until_fires
    [ "$(query 'node_textfile_scrape_error')" = '"0"' ]
    until_ok 30 query 'lock_acquisition_duration_seconds_bucket{class="nightly",le="+Inf"}'
    # what the dashboard asks is understood
    asked=0
    while IFS= read -r expression; do
        answer=$(curl -sG "http://127.0.0.1:$prometheus/api/v1/query" --data-urlencode "query=${expression//\$__rate_interval/5m}")
        [ "$(jq -r .status <<<"$answer")" = success ] || { echo "$expression: $answer" && return 1; }
        asked=$((asked + 1))
    done < <(jq -r '.panels[].targets[].expr' "$ops/grafana.json")
    [ "$asked" -gt 12 ]
}
