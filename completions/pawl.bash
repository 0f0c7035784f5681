# bash completion for pawl(1). Needs nothing but bash: the package bash-completion loads it by itself, others source it.

# $words, those up to the cursor, cut at blanks only: readline cuts at : and = too, but a URL is one word. $cur is the last,
# $cut what readline has cut off from it.
_pawl_words() {
    local rest=$COMP_LINE word i
    words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $rest in
        [[:blank:]]* | '') words+=("$word") ;;
        *) if ((i)); then words[-1]+=$word; else words=("$word"); fi ;;
        esac
        rest=${rest#"${rest%%[![:blank:]]*}"}
        rest=${rest#"$word"}
    done
    cur=${words[-1]}
    cut=${cur%"$word"}
    if [[ -n $word && -z ${word//[:=]/} ]]; then cut=$cur; fi
}

_pawl_offer() { # WORDS: those that begin with $cur
    COMPREPLY=($(compgen -W "$1" -- "$cur"))
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
}

_pawl_files() { # -d or -f, PATH
    local IFS=$'\n'
    COMPREPLY=($(compgen "$1" -- "$2"))
    compopt -o filenames 2>/dev/null || :
}

_pawl_takes() { # OPTION: whether a value follows it
    case $1 in
    -u | --url | --log | --for | --on-lost | --rule | --receipt | --metrics-dir | -t | --ttl | -w | --wait | --timeout | -E | \
        --conflict-exit-code | --label | --grace | --hold-at-least | --max-hold | --every | --seal | --to | --floor | --lock | \
        --token | --by | --seq | --why | --rounds | --resource) return 0 ;;
    esac
    return 1
}

_pawl_value() { # OPTION: completes its value
    case $1 in
    -u | --url)
        compopt -o nospace 2>/dev/null || :
        case $cur in
        file:*) _pawl_files -d "${cur#file:}" && COMPREPLY=("${COMPREPLY[@]/#/file:}") && COMPREPLY=("${COMPREPLY[@]#"$cut"}") ;;
        *) _pawl_offer "file: redis:// rediss:// redis+unix:// redis+sentinel:// redlock:// redlocks:// postgresql:// etcd:// etcds:// mem:" ;;
        esac
        ;;
    --log) _pawl_offer "text json" ;;
    --for) _pawl_offer "efficiency correctness" ;;
    --on-lost) _pawl_offer "term kill" ;;
    --rule) _pawl_offer "ge gt seq" ;;
    --receipt) _pawl_files -f "$cur" ;;
    --metrics-dir) _pawl_files -d "$cur" ;;
    esac
}

# Names of locks, those that are plain words: whoever names a lock must not have a say in what a shell does.
_pawl_locks() { # [-u URL]
    _pawl_offer "$(pawl ls -w 1s "$@" 2>/dev/null | awk '$1 ~ /^[A-Za-z0-9_.:\/@+=,-]+$/ { print $1 }')"
}

_pawl() {
    local cur cut words verb options operands=0 i url=()
    local verbs="run hold release who ls watch break doctor init token guard demo version help"
    COMPREPLY=()
    _pawl_words
    local cword=$((${#words[@]} - 1))
    if [ "$cword" = 1 ]; then
        _pawl_offer "$verbs --help --version"
        return
    fi
    verb=${words[1]}
    for ((i = 2; i < cword; i++)); do
        case ${words[i]} in
        --) [ "$verb" = run ] && [ "$operands" = 0 ] || operands=$((operands + 1)) ;;
        --url=*) url=(-u "${words[i]#--url=}") ;;
        -*) if _pawl_takes "${words[i]}"; then
            case ${words[i]} in -u | --url) url=(-u "${words[i + 1]}") ;; esac
            i=$((i + 1))
        fi ;;
        *) operands=$((operands + 1)) ;;
        esac
        if [ "$verb" = run ] && [ "$operands" = 1 ]; then # behind NAME stands the command
            i=$((i + 1))
            [ "$i" -lt "$cword" ] && [ "${words[i]}" = -- ] && i=$((i + 1))
            if declare -F _command_offset >/dev/null; then _command_offset "$i"
            elif [ "$cword" -gt "$i" ] || [[ $cur == */* ]]; then _pawl_files -f "$cur"
            else COMPREPLY=($(compgen -c -- "$cur")); fi
            return
        fi
    done
    if _pawl_takes "${words[cword - 1]}"; then
        _pawl_value "${words[cword - 1]}"
        return
    fi
    if [[ $cur == --*=* ]] && _pawl_takes "${cur%%=*}"; then
        i=${cur%%=*} cut=${cut#"$i="} cur=${cur#*=}
        _pawl_value "$i"
        return
    fi
    local every="-v --verbose -q --quiet --log -h --help" place="-u --url"
    local lock="-t --ttl --label --for" wait="-w --wait --timeout"
    local take="-n --nb --nonblock --nonblocking --nowait $wait -s --shared -x -e --exclusive -E --conflict-exit-code --max-hold"
    case $verb in
    run) options="$every $place $lock --json $take --grace --on-lost --hold-at-least --repeat --receipt --metrics-dir --seal" ;;
    hold) options="$every $place $lock --json $take -d --detach --metrics-dir" ;;
    release | version) options="$every --json" ;;
    who | ls) options="$every $place --json $wait" ;;
    doctor) options="$every $place $lock --json --guarantees --acl --seal $wait" ;;
    watch) options="$every $place --json $wait --every" ;;
    break) options="$every $place --json $wait --now --label" ;;
    init) options="$every $place $wait --print --floor" ;;
    token)
        options="$every $place --json $wait --to"
        [ "$operands" = 0 ] && options="show advance $options"
        ;;
    guard)
        if [ "$cword" = 2 ]; then
            _pawl_offer "put get seal exec audit install reset test --help"
            return
        fi
        options="$every --json --lock --token --by --rule --accept-jump --seq --to --why --exec --rounds --print --protect --resource"
        ;;
    demo) options="zombie partition stale-release redis-failover pooler-leak $every $place" ;;
    help) options=$verbs ;;
    *) return ;;
    esac
    case $verb:$cur in
    who:-* | watch:-* | break:-* | run:-* | hold:-*) _pawl_offer "$options" ;;
    who:* | watch:* | break:* | run:* | hold:*) _pawl_locks "${url[@]}" ;;
    *) _pawl_offer "$options" ;;
    esac
}
complete -F _pawl pawl
