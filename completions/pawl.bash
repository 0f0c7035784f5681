# bash completion for pawl(1)

_pawl_value() { # OPTION: completes its value; false: it takes none
    case $1 in
    -u | --url)
        if [[ $cur == file:* ]]; then # behind the colon, which readline takes for the end of a word
            COMPREPLY=($(compgen -d -P file: -- "${cur#file:}"))
            compopt -o nospace 2>/dev/null
            declare -F __ltrim_colon_completions >/dev/null && __ltrim_colon_completions "$cur"
            return 0
        fi
        COMPREPLY=($(compgen -W "file: redis:// rediss:// redis+unix:// redis+sentinel:// postgresql:// etcd:// etcds:// mem:" -- "$cur")) ;;
    --log) COMPREPLY=($(compgen -W "text json" -- "$cur")) ;;
    --for) COMPREPLY=($(compgen -W "efficiency correctness" -- "$cur")) ;;
    --on-lost) COMPREPLY=($(compgen -W "term kill" -- "$cur")) ;;
    --rule) COMPREPLY=($(compgen -W "ge gt seq" -- "$cur")) ;;
    --receipt) COMPREPLY=($(compgen -f -- "$cur")) ;;
    --metrics-dir) COMPREPLY=($(compgen -d -- "$cur")) ;;
    -t | --ttl | -w | --wait | --timeout | -E | --conflict-exit-code | --label | --grace | --hold-at-least | --max-hold | --every | \
        --seal | --to | --lock | --token | --by | --seq | --why) COMPREPLY=() ;;
    *) return 1 ;;
    esac
    return 0
}

_pawl() {
    local cur prev verb options operands=0 i
    local verbs="run hold release who ls watch break doctor init token guard demo version help"
    _get_comp_words_by_ref -n =: cur prev words cword 2>/dev/null ||
        { cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words=("${COMP_WORDS[@]}") cword=$COMP_CWORD; }
    COMPREPLY=()
    if [ "$cword" = 1 ]; then
        COMPREPLY=($(compgen -W "$verbs --help --version" -- "$cur"))
        return
    fi
    verb=${words[1]}
    for ((i = 2; i < cword; i++)); do
        case ${words[i]} in
        --) [ "$verb" = run ] && [ "$operands" = 0 ] || operands=$((operands + 1)) ;;
        -*) _pawl_value "${words[i]}" && i=$((i + 1)) ;;
        *) operands=$((operands + 1)) ;;
        esac
        if [ "$verb" = run ] && [ "$operands" = 1 ]; then # behind NAME stands the command
            i=$((i + 1))
            [ "$i" -lt "$cword" ] && [ "${words[i]}" = -- ] && i=$((i + 1))
            COMPREPLY=()
            if declare -F _command_offset >/dev/null; then _command_offset "$i"
            elif [ "$cword" -gt "$i" ] || [[ $cur == */* ]]; then COMPREPLY=($(compgen -f -- "$cur"))
            else COMPREPLY=($(compgen -c -- "$cur")); fi
            return
        fi
    done
    COMPREPLY=()
    _pawl_value "$prev" && return
    local every="-v --verbose -q --quiet --log -h --help" url="-u --url"
    local lock="-t --ttl --label --for" wait="-w --wait --timeout"
    local take="-n --nb --nonblock --nonblocking --nowait $wait -s --shared -x -e --exclusive -E --conflict-exit-code --max-hold"
    case $verb in
    run) options="$every $url $lock --json $take --grace --on-lost --hold-at-least --repeat --receipt --metrics-dir --seal" ;;
    hold) options="$every $url $lock --json $take -d --detach --metrics-dir" ;;
    release | version) options="$every --json" ;;
    who | ls) options="$every $url --json $wait" ;;
    doctor) options="$every $url $lock --json --guarantees --acl --seal $wait" ;;
    watch) options="$every $url --json $wait --every" ;;
    break) options="$every $url --json $wait --now --label" ;;
    init) options="$every $url $wait --print" ;;
    token)
        options="$every $url --json $wait --to"
        [ "$operands" = 0 ] && options="show advance $options"
        ;;
    guard)
        if [ "$cword" = 2 ]; then
            COMPREPLY=($(compgen -W "put get seal exec audit install reset test --help" -- "$cur"))
            return
        fi
        options="$every --json --lock --token --by --rule --accept-jump --seq --to --why --exec --rounds"
        ;;
    demo) options="zombie $every $url" ;;
    help) options=$verbs ;;
    *) return ;;
    esac
    case $verb:$cur in
    who:-* | watch:-* | break:-* | run:-* | hold:-*) ;;
    who:* | watch:* | break:* | run:* | hold:*) # names of locks, those that are plain words
        COMPREPLY=($(compgen -W "$(pawl ls -w 1s 2>/dev/null | awk '$1 !~ /%/ { print $1 }')" -- "$cur"))
        return
        ;;
    esac
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
}
complete -F _pawl pawl
