# Man pages and completions say what the command does, no more and no less.
load helper
setup() { pawl_setup; top=$BATS_TEST_DIRNAME/../..; }

pages() { # VERB: the page that documents it
    case $1 in
    hold | release) echo pawl-hold.1 ;;
    who | ls) echo pawl-who.1 ;;
    run | token | init | watch | break | doctor) echo "pawl-$1.1" ;;
    *) echo pawl.1 ;;
    esac
}
documented() { # PAGE: its options, one a line: -u --url ...
    sed -n 's/^\.It Fl //p; /^Those of$/,/^and:$/p; /^\.Fl /p' "$top/man/$1" | grep -v '^Those\|^\.Xr\|^and' |
        sed 's/^\.Fl //; s/^\.Pq //' | tr ',' '\n' | sed -n 's/^ *\(Fl \)\{0,1\}\(-[a-z][a-z-]*\|[a-zA-Z]\)\( .*\)\{0,1\}$/-\2/p' | sort -u
}
helped() { # VERB: the options that its --help names
    pawl "$1" --help | grep '^ *-' | grep -oE -- '(^|[ ,])--?[a-zA-Z][a-z-]*' | tr -d ' ,' | sort -u
}
verbs() { pawl --help | sed -n 's/^  pawl \([a-z]*\).*/\1/p'; }

@test "every option that --help names is in the man page of the verb, or in pawl(1)" {
    for verb in run hold release who ls watch break doctor init token version; do
        while IFS= read -r option; do
            { documented "$(pages $verb)"; documented pawl.1; } | grep -qxe "$option" ||
                { echo "$verb: $option is in no page" && return 1; }
        done < <(helped $verb | grep -v '^-c$')
    done
}

@test "every option of a man page is one of the verb" {
    n=0
    for pair in run:pawl-run.1 hold:pawl-hold.1 who:pawl-who.1 watch:pawl-watch.1 break:pawl-break.1 doctor:pawl-doctor.1 init:pawl-init.1 token:pawl-token.1 hold:pawl.1; do
        while IFS= read -r option; do
            case $option in -c | -V | --version | --) continue ;; esac
            run --separate-stderr pawl "${pair%:*}" "$option"
            [[ $stderr != *"unknown option"* ]] || { echo "$pair: $stderr" && return 1; }
            n=$((n + 1))
        done < <(documented "${pair#*:}")
    done
    [ "$n" -gt 60 ]
}

@test "every command that a document writes is one: its verb, its options" {
    cat >"$BATS_TEST_TMPDIR/words.py" <<'EOF'
import glob, re, sys
for path in [*glob.glob(sys.argv[1] + "/*.md"), sys.argv[1] + "/ops/README.md", *glob.glob(sys.argv[1] + "/docs/**/*.md", recursive=True)]:
    text = open(path, encoding="utf-8").read()
    text = re.sub(r"\[`[^`]+`\]\([^)]+\)", "", text)  # tests, which have names
    code = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    code += re.findall(r"^(?: {4}|[$] )(?:[*]/\S+ .* |ExecStart=/usr/bin/)?(pawl .*)$", text, flags=re.M)
    code += re.findall(r"^(pawl .*)$", "".join(re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.M | re.S)), flags=re.M)
    for line in code:
        for call in re.findall(r"(?<![\w./=-])pawl ([a-z][^|;)#&<>`]*)", line):
            verb, *words = call.split()
            if not verb.isalpha() or call.startswith("lock 1"):
                continue  # the name of an application, the head of a lock file
            if verb == "guard" and words and words[0].isalpha():
                verb += " " + words.pop(0)
            print(verb, "--help", path, sep="\t")
            for word in words:
                if word == "--":
                    break
                if re.match(r"--?[a-z]", word) and word != "-c":
                    print(verb, word.split("=")[0].rstrip(".,:'\")]"), path, sep="\t")
EOF
    n=0
    while IFS=$'\t' read -r verb option path; do
        # shellcheck disable=SC2086
        run --separate-stderr pawl $verb "$option"
        [[ $stderr != *"unknown option"* && $stderr != *"unknown verb"* ]] || { echo "$path: pawl $verb $option: $stderr" && return 1; }
        n=$((n + 1))
    done < <(python3 "$BATS_TEST_TMPDIR/words.py" "$top" | sort -u -t $'\t' -k 1,2)
    [ "$n" -gt 40 ]
}

@test "every verb is in pawl(1)" {
    n=0
    for verb in $(verbs); do
        grep -qE "(^\.It Ic |, )$verb\>" "$top/man/pawl.1" || { echo "$verb is not in pawl(1)" && return 1; }
        n=$((n + 1))
    done
    [ "$n" -ge 8 ]
}

@test "every exit code is in pawl(1)" {
    codes=$(sed -n 's/^    EXIT_[A-Z_]* = \([0-9]*\).*/\1/p' "$top/cli/cli.h")
    [ "$(wc -w <<<"$codes")" -ge 7 ]
    for code in $codes 126 127; do grep -qE "^\.It .*\<$code\>" "$top/man/pawl.1" || { echo "$code" && return 1; }; done
}

# The codes of an exit section, of --help or of a man page: not only the first of "123, 124".
codes_in() { grep -oE '\<1[12][0-9]\>(\+|\\)?' | grep -v '128' | sort -u | tr '\n' ' '; }

@test "the exit codes of each verb are the same in --help and in its man page" {
    for verb in run hold release who ls watch break doctor init 'token show' demo; do
        help=$(pawl $verb --help | sed -n '/^Exit/,$p' | codes_in)
        page=$top/man/pawl-${verb%% *}.1
        target=$(sed -n 's,^\.so man1/,,p' "$page")
        section=$(sed -n '/^\.Sh EXIT/,/^\.Sh [A-DF-Z]/p' "$top/man/${target:-pawl-${verb%% *}.1}")
        # A page of two verbs has a part for each, behind its name.
        if grep -q '^\.Nm pawl [a-z]* :' <<<"$section"; then
            section=$(awk -v want=".Nm pawl $verb :" '/^\.Nm pawl .* :/ { on = $0 == want } on' <<<"$section")
        fi
        [ "$(codes_in <<<"$section")" = "$help" ] ||
            { echo "$verb: --help: $help, the page: $(codes_in <<<"$section")" && return 1; }
        [[ $help == *125* ]]
    done
    help=$(for verb in put get seal exec audit install reset test; do pawl guard $verb --help | sed -n '/^Exit/,$p'; done | codes_in)
    [ "$(sed -n '/^\.Sh EXIT/,/^\.Sh [A-DF-Z]/p' "$top/man/pawl-guard.1" | codes_in)" = "$help" ]
}

@test "libpawl(3) has each function of pawl.h, and no other" {
    sed -e 's,/\*.*\*/,,' -e /^typedef/d "$top/include/pawl.h" | grep -o '\bpawl_[a-z_]*(' | tr -d '(' | sort -u >"$BATS_TEST_TMPDIR/declared"
    sed -n '/^\.Sh SYN/,/^\.Sh DESC/s/^\.Fn \(pawl_[a-z_]*\).*/\1/p' "$top/man/libpawl.3" | sort -u >"$BATS_TEST_TMPDIR/documented"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/declared")" -gt 20 ]
    diff "$BATS_TEST_TMPDIR/declared" "$BATS_TEST_TMPDIR/documented"
    grep -o 'PAWL_E[A-Z]*' "$top/include/pawl.h" | grep -vx 'PAWL_E\|PAWL_EVENT\|PAWL_ERROR' | sort -u >"$BATS_TEST_TMPDIR/codes"
    while IFS= read -r code; do grep -q "^.It Dv $code$" "$top/man/libpawl.3" || { echo "$code" && return 1; }; done <"$BATS_TEST_TMPDIR/codes"
}

@test "pawl.conf(5) has each key, and no other" {
    sed -n '/^\.Sh KEYS/,/^\.Sh EX/s/^\.It Cm //p' "$top/man/pawl.conf.5" | tr -d ' ' | tr ',' '\n' | sort >"$BATS_TEST_TMPDIR/documented"
    for key in $(cat "$BATS_TEST_TMPDIR/documented"); do
        printf '[p]\n%s = x\n' "$key" >"$PAWL_CONFIG"
        chmod 600 "$PAWL_CONFIG"
        run --separate-stderr pawl who -u "file:$BATS_TEST_TMPDIR" n
        [[ $stderr != *"unknown key"* ]] || { echo "$stderr" && return 1; }
    done
    grep -oE '\[KEY_[A-Z_]*\] = "[a-z-]*"|"[a-z-]*"' <(sed -n '/key_names\[N_KEYS\]/,/;/p' "$top/cli/config.c") |
        tr -d '"' | sort | diff - "$BATS_TEST_TMPDIR/documented"
}

@test "man pages are well-formed" {
    command -v mandoc >/dev/null || skip "no mandoc here"
    for page in "$top"/man/*.[1357]; do
        grep -q '^\.so ' "$page" || mandoc -Tlint -W warning "$page"
    done
}

@test "a page that stands for another names one that is there" {
    for page in "$top"/man/*.1; do
        target=$(sed -n 's/^\.so man1\///p' "$page")
        [ -z "$target" ] || [ -e "$top/man/$target" ]
        grep -q "'$(basename "$page")'" "$top/man/meson.build"
    done
}

example() { # LANGUAGE: the example of pawl-hold(1)
    sed -n "/^In $1:\$/,/^\.Ed/p" "$top/man/pawl-hold.1" | grep -v '^\.\|^In \|^\\&'
}

@test "the examples of pawl-hold(1) work" {
    mkdir "$BATS_TEST_TMPDIR/locks" "$BATS_TEST_TMPDIR/bin"
    ln -s "${PAWL_BIN:-$top/build/cli/pawl}" "$BATS_TEST_TMPDIR/bin/pawl"
    export PATH=$BATS_TEST_TMPDIR/bin:$PATH
    run -0 python3 - <<<"import json, subprocess
def work(token): print('token', token)
$(example Python)
print('exit', p.wait())"
    [[ $output =~ ^token\ [0-9]+$'\n'exit\ 0$ ]]
    run -1 pawl who -q nightly
    run -0 bash -c "$(example 'a shell')"
    [ -z "$output" ]
    run -1 pawl who -q nightly
    [[ $(pawl token show --json | jq .last) == '"'* ]]
}

complete_bash() { # WORD...: what bash offers for the last
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
    COMPREPLY=()
    _pawl
    printf '%s\n' "${COMPREPLY[@]}" | sort -u
}

@test "bash completes the verbs and the options that there are" {
    source "$top/completions/pawl.bash"
    diff <(verbs | sort) <(complete_bash pawl '' | grep -v '^-')
    for verb in run hold release who ls watch break doctor init token version; do
        diff <(helped $verb | grep -v '^-c$') <(complete_bash pawl $verb - | grep -xFf <(helped $verb)) ||
            { echo "$verb: not offered" && return 1; }
        for option in $(complete_bash pawl $verb -); do
            run --separate-stderr pawl $verb "$option"
            [[ $stderr != *"unknown option"* ]] || { echo "$verb: $stderr" && return 1; }
        done
    done
    [ "$(complete_bash pawl hold --for c)" = correctness ]
    [ "$(complete_bash pawl hold --log '')" = $'json\ntext' ]
    complete_bash pawl run -n nightly -- bas | grep -qx bash
    mkdir "$BATS_TEST_TMPDIR/locks"
    [ "$(complete_bash pawl run -n nightly -- ls "$BATS_TEST_TMPDIR/lo")" = "$BATS_TEST_TMPDIR/locks" ]
    [ "$(complete_bash pawl who -u "file:$BATS_TEST_TMPDIR/lo")" = "file:$BATS_TEST_TMPDIR/locks" ]
}

@test "zsh and fish offer the same options" {
    for verb in run hold release who ls watch break doctor init token version; do
        for option in $(helped $verb | sed -n 's/^--//p'); do
            grep -q -- "--$option\>" "$top/completions/_pawl" || { echo "zsh: --$option" && return 1; }
            grep -qE -- "-l $option( |$)" "$top/completions/pawl.fish" || { echo "fish: --$option" && return 1; }
        done
    done
    for verb in $(verbs); do
        grep -q "^        '$verb:" "$top/completions/_pawl"
        grep -q -- "-a $verb -d" "$top/completions/pawl.fish"
    done
    for option in $(grep ^complete "$top/completions/pawl.fish" | grep -o -- '-l [a-z-]*' | cut -c4- | sort -u); do
        grep -q -- "--$option\>" "$top/completions/_pawl" || { echo "fish alone: --$option" && return 1; }
    done
}

# tested PAGE VERSION: the page says that it was tested on that one.
tested() {
    said=$(sed -n 's/.*Tested on \([0-9.]*[0-9]\).*/\1/p' "$top/docs/$1.md")
    [[ $said =~ ^[0-9]+(\.[0-9]+)?$ ]] || { echo "$1.md names no version" && return 1; }
    [ "$said" = "$2" ] || [ -z "${CI:-}" ] || { echo "tested on $2 here, $1.md says $said" && return 1; }
}

@test "the page of each service names the version that it was tested on; where all is tested, it is this one" {
    for pair in redis:redis-server redlock:redis-server etcd:etcd; do
        command -v "${pair#*:}" >/dev/null || skip "no ${pair#*:}"
        tested "${pair%:*}" "$("${pair#*:}" --version | grep -oE '[0-9]+\.[0-9]+' | head -1)"
    done
    [ -d /usr/lib/postgresql ] || skip "no PostgreSQL"
    tested postgresql "$(ls /usr/lib/postgresql | sort -V | tail -1)"
}

@test "the bibliography has both sides of the debate, and what the services themselves say" {
    page=$(tr '\n' ' ' <"$top/docs/BIBLIOGRAPHY.md" | tr -s ' ')
    for source in 'Kleppmann, \*How to do distributed locking\*, 8 February 2016' 'Sanfilippo, \*Is Redlock safe?\*, 9 February 2016' \
        'Ongaro and John Ousterhout, .*ATC 2014 (Raft)' 'PostgreSQL documentation: ' 'etcd documentation: ' 'Redis documentation: '; do
        grep -q "$source" <<<"$page" || { echo "not there: $source" && return 1; }
    done
    grep -q 'Both are right about something' <<<"$page"
}
