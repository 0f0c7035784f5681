# Where the URL comes from, the configuration file, and secrets.
load helper
setup() {
    pawl_setup
    unset PAWL_URL PAWL_CONFIG
    mkdir -p "$BATS_TEST_TMPDIR"/{a,b,c} "$HOME/.config/pawl"
    config=$HOME/.config/pawl/config
}
configure() { cat >"$config" && chmod 600 "$config"; }
url_is() { # WANTED FROM [OPTION...]
    run --separate-stderr -1 pawl who -v "${@:3}" n
    in_stderr "pawl: n: url $1 (from $2)"
}

@test "-u before PAWL_URL before the configuration before file:" {
    [ ! -e /etc/pawl/config ] || skip "this machine has an /etc/pawl/config"
    default=/var/lib/pawl
    [ "$(id -u)" = 0 ] || default=$(getent passwd "$(id -u)" | cut -d: -f6)/.local/state/pawl
    run --separate-stderr pawl who -v n
    in_stderr "url file:$default (from default)"
    echo "url = file:$BATS_TEST_TMPDIR/a" | configure
    url_is "file:$BATS_TEST_TMPDIR/a" "$config"
    export PAWL_URL=file:$BATS_TEST_TMPDIR/b
    url_is "file:$BATS_TEST_TMPDIR/b" PAWL_URL
    url_is "file:$BATS_TEST_TMPDIR/c" -u -u "file:$BATS_TEST_TMPDIR/c"
    url_is "file:$BATS_TEST_TMPDIR/c" -u "--url=file:$BATS_TEST_TMPDIR/c"
}

@test "an empty PAWL_URL is none" {
    echo "url = file:$BATS_TEST_TMPDIR/a" | configure
    export PAWL_URL=
    url_is "file:$BATS_TEST_TMPDIR/a" "$config"
}

@test "profiles: -u @name, also from PAWL_URL" {
    configure <<END
# a comment
; and another
url = file:$BATS_TEST_TMPDIR/a
ttl = 20s

[ prod ]
  url   =   file:$BATS_TEST_TMPDIR/b
[bare]
ttl = 1s
END
    url_is "file:$BATS_TEST_TMPDIR/b" "$config" -u @prod
    PAWL_URL=@prod url_is "file:$BATS_TEST_TMPDIR/b" "$config"
    run --separate-stderr -125 pawl who -u @nope n
    in_stderr "there is no profile 'nope' in $config or /etc/pawl/config"
    run --separate-stderr -125 pawl who -u @bare n
    in_stderr "the profile 'bare' has no url"
    run --separate-stderr -125 pawl who -u @ n
    in_stderr "a profile is @NAME"
}

@test "XDG_CONFIG_HOME moves it, PAWL_CONFIG names it and must exist" {
    mkdir -p "$BATS_TEST_TMPDIR/xdg/pawl"
    echo "url = file:$BATS_TEST_TMPDIR/a" >"$BATS_TEST_TMPDIR/xdg/pawl/config"
    export XDG_CONFIG_HOME=$BATS_TEST_TMPDIR/xdg
    url_is "file:$BATS_TEST_TMPDIR/a" "$XDG_CONFIG_HOME/pawl/config"
    echo "url = file:$BATS_TEST_TMPDIR/b" >"$BATS_TEST_TMPDIR/other"
    export PAWL_CONFIG=$BATS_TEST_TMPDIR/other
    url_is "file:$BATS_TEST_TMPDIR/b" "$PAWL_CONFIG"
    PAWL_CONFIG=$BATS_TEST_TMPDIR/nowhere run --separate-stderr -125 pawl who n
    in_stderr "cannot read the configuration $BATS_TEST_TMPDIR/nowhere: No such file or directory"
}

@test "label, log and for come from the file; options win" {
    configure <<END
url = file:$BATS_TEST_TMPDIR/a
label = deep sea
for = correctness
log = json
END
    handle=$(pawl hold -d n)
    [ "$(pawl who --json n | jq -r '.holders[0].label')" = "deep sea" ]
    pawl release "$handle"
    handle=$(pawl hold -d --label mine n)
    [ "$(pawl who --json n | jq -r '.holders[0].label')" = mine ]
    pawl release "$handle"
    run --separate-stderr -0 pawl hold -v n </dev/null
    jq -e '.level == "info"' <<<"${stderr_lines[0]}"
    run --separate-stderr -0 pawl hold -v --log text n </dev/null
    in_stderr "pawl: n: url"
}

@test "ttl comes from the file, and -t wins" {
    printf 'url = mem:\nttl = 40s\n' | configure
    run -0 pawl hold n </dev/null
    jq -es '.[0].remaining_ms | . > 30000 and . <= 40000' <<<"$output"
    run -0 pawl hold -t 2m n </dev/null
    jq -es '.[0].remaining_ms | . > 100000 and . <= 120000' <<<"$output"
}

@test "what is wrong is named with file, line and key" {
    for pair in "zebra = 1|unknown key 'zebra'" "pasword = x|unknown key 'pasword'; did you mean 'password'?" \
        'ttl = soon|ttl: must be a duration' 'ttl = 1ms|ttl: must be a duration from 100ms to 24h' \
        'log = loud|log: must be text or json' 'for = fun|for: must be efficiency or correctness' \
        'novalue|neither key = value nor [profile]' '[|a profile is [name]' '[]|a profile is [name]' \
        'url =|url has no value' 'url = @other|url: a profile cannot name another' \
        'password = x|password: there is no url beside it' 'cacert = x|cacert: there is no url beside it'; do
        printf '\n%s\n' "${pair%%|*}" | configure
        run --separate-stderr -125 pawl who n
        in_stderr "pawl: $config line 2: ${pair#*|}"
    done
    printf 'url = file:a\nurl = file:b\n' | configure
    run --separate-stderr -125 pawl who n
    in_stderr "$config line 2: url is already given in line 1"
    printf '[p]\nzebra = 1\n' | configure # a profile that nobody asked for is read as well
    run --separate-stderr -125 pawl who n
    in_stderr "$config line 2: unknown key 'zebra'"
    printf 'url = file:a\n[p]\nttl = 5x\n' | configure
    run --separate-stderr -125 pawl who n
    in_stderr "$config line 3: ttl: must be a duration"
    printf '[p]\nlabel = a\nlabel = b\n[q]\nurl = file:a\n' | configure
    run --separate-stderr -125 pawl who -u @q n
    in_stderr "$config line 3: label is already given in line 2"
    printf '[p]\nurl = file:a\n[q]\nurl = file:b\nfor = maybe\n' | configure
    run --separate-stderr -125 pawl who -u @p n
    in_stderr "$config line 5: for: must be"
}

@test "a file with a password must not be readable by others" {
    for text in $'url = redis://h\npassword = hush' 'url = redis://u:hush@h' $'[p]\nurl = redis://h?password=hush'; do
        configure <<<"$text"
        chmod 644 "$config"
        run --separate-stderr -125 pawl who n
        in_stderr "$config has a password and others can read it (mode 644): chmod 600 $config"
        [[ $stderr != *hush* ]]
    done
    echo "url = file:$BATS_TEST_TMPDIR/a" | configure
    chmod 644 "$config"
    url_is "file:$BATS_TEST_TMPDIR/a" "$config"
}

@test "the password of the file goes into the URL and is never shown" {
    printf 'url = redis://app@127.0.0.1:1/0\npassword = h/u?s#h @1\n' | configure
    run --separate-stderr -120 pawl who -v -w 2s n
    in_stderr "url redis://app:***@127.0.0.1:1/0 (from $config)"
    [[ $stderr != *h/u* && $stderr != *h%2Fu* ]]
    printf 'url = redis://app:x@127.0.0.1:1/0\npassword = hush\n' | configure
    run --separate-stderr -125 pawl who n
    in_stderr "line 2: password: the url has a password already"
    printf 'url = file:x\npassword = hush\n' | configure
    run --separate-stderr -125 pawl who n
    in_stderr "line 2: password: the url names no server"
}

# A hold in the background that waits for its configuration, a fifo; it has hidden its secrets by then.
start_with_secret() {
    export PAWL_CONFIG=$BATS_TEST_TMPDIR/fifo
    mkfifo "$PAWL_CONFIG"
    "${PAWL_BIN:-pawl}" hold -v "$@" n >/dev/null 2>"$BATS_TEST_TMPDIR/stderr" 3>&- &
    pid=$!
    shows() { tr '\0' ' ' <"/proc/$pid/$1" | grep -F 'redis://app:***@127.0.0.1:1'; }
}
leaves_no_secret() {
    [[ $(tr '\0' ' ' <"/proc/$pid/cmdline") != *hush-hush* ]]
    [[ $(tr '\0' ' ' <"/proc/$pid/environ") != *hush-hush* ]]
    echo 'zebra = 1' >"$PAWL_CONFIG"
    wait "$pid" || [ $? = 125 ]
    run -1 grep hush "$BATS_TEST_TMPDIR/stderr"
    grep -q "unknown key 'zebra'" "$BATS_TEST_TMPDIR/stderr"
}

@test "a password in -u leaves argv, with advice under -v" {
    start_with_secret -u redis://app:hush-hush@127.0.0.1:1
    until_ok 10 shows cmdline
    leaves_no_secret
    grep -q 'use -u @profile' "$BATS_TEST_TMPDIR/stderr"
}

@test "a password in --url= leaves argv too" {
    start_with_secret --url=redis://app:hush-hush@127.0.0.1:1
    until_ok 10 shows cmdline
    leaves_no_secret
}

@test "a password in PAWL_URL leaves the environment" {
    export PAWL_URL=redis://app:hush-hush@127.0.0.1:1
    start_with_secret
    until_ok 10 shows environ
    leaves_no_secret
}

@test "a password in PAWL_URL stays from the command also where -u is used" {
    export PAWL_URL=redis://app:hush-hush@127.0.0.1:1
    mkdir "$BATS_TEST_TMPDIR/other"
    run -0 pawl run -u "file:$BATS_TEST_TMPDIR/other" n printenv PAWL_URL
    [ "$output" = "redis://app:***@127.0.0.1:1" ]
    PAWL_URL=@profile run -0 pawl run -u "file:$BATS_TEST_TMPDIR/other" n printenv PAWL_URL
    [ "$output" = "@profile" ]
}

@test "a child that finds the URL without its password is told so, and does not fall back" {
    PAWL_URL='redis://app:***@h' run --separate-stderr -125 pawl who n
    in_stderr "its password was kept from this process; use a profile"
}

@test "a URL that cannot be parsed does not show its password" {
    run --separate-stderr -125 pawl who -v -u 'redis://app:hush%zz@h/' n
    [[ $stderr != *hush* ]]
    [ -n "$stderr" ]
}
