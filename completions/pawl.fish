# fish completion for pawl(1)

function __pawl_locks
    set -l url
    set -l words (commandline -opc)
    for i in (seq (count $words))
        string match -qr '^(-u|--url)$' -- $words[$i]; and set url -u $words[(math $i + 1)]
        string match -qr '^--url=' -- $words[$i]; and set url -u (string replace -- --url= '' $words[$i])
    end
    # those that are plain words
    pawl ls -w 1s $url 2>/dev/null | awk '$1 ~ /^[A-Za-z0-9_.:\/@+=,-]+$/ { print $1 }'
end

function __pawl_verb
    test (count (commandline -opc)) -gt 1; and contains -- (commandline -opc)[2] $argv
end

set -l verbs run hold release who ls watch break doctor init token guard demo version help
complete -c pawl -f
complete -c pawl -n __fish_is_first_token -a run -d 'hold the lock while a command runs'
complete -c pawl -n __fish_is_first_token -a hold -d 'take it, tell each event as JSON, keep it until stdin ends'
complete -c pawl -n __fish_is_first_token -a release -d 'end a hold -d'
complete -c pawl -n __fish_is_first_token -a who -d 'who holds it, and who waits'
complete -c pawl -n __fish_is_first_token -a ls -d 'all locks'
complete -c pawl -n __fish_is_first_token -a watch -d 'each change of who holds it, and who waits'
complete -c pawl -n __fish_is_first_token -a break -d 'take a stuck lock away from its holder'
complete -c pawl -n __fish_is_first_token -a doctor -d 'is this set-up good for locks, and for what'
complete -c pawl -n __fish_is_first_token -a init -d 'prepare a service (PostgreSQL)'
complete -c pawl -n __fish_is_first_token -a token -d 'where the numbers of a service stand; lift them'
complete -c pawl -n __fish_is_first_token -a guard -d 'the resource side: refuse whoever lost the lock'
complete -c pawl -n __fish_is_first_token -a demo -d 'see a lost lock do harm, then see it refused'
complete -c pawl -n __fish_is_first_token -a version -d 'what this is, and which services it can use'
complete -c pawl -n __fish_is_first_token -a help -d 'the text of a verb'
complete -c pawl -n '__pawl_verb help' -a "$verbs"

complete -c pawl -s v -l verbose -d 'more messages'
complete -c pawl -s q -l quiet -d 'fewer messages'
complete -c pawl -l log -x -a 'text json' -d 'form of messages'
complete -c pawl -s h -l help -d 'what the verb does'
complete -c pawl -n '__pawl_verb run hold who ls watch break doctor init token demo' -s u -l url -x -a 'file: redis:// rediss:// redis+unix:// redis+sentinel:// redlock:// redlocks:// postgresql:// etcd:// etcds:// mem:' -d 'where the lock lives'
complete -c pawl -n '__pawl_verb run hold release who ls watch break doctor token guard version' -l json -d 'results as JSON'
complete -c pawl -n '__pawl_verb run hold who ls watch break doctor init token' -s w -l wait -l timeout -x -d 'how long to wait'

complete -c pawl -n '__pawl_verb doctor' -l guarantees -d 'what is promised there'
complete -c pawl -n '__pawl_verb doctor' -l seal -x -d 'a guard that has to answer'
complete -c pawl -n '__pawl_verb doctor' -l acl -d 'the smallest rights'
complete -c pawl -n '__pawl_verb run hold doctor' -s t -l ttl -x -d 'how long the lock outlives a dead holder'
complete -c pawl -n '__pawl_verb run hold break doctor' -l label -x -d 'shown by who'
complete -c pawl -n '__pawl_verb run hold doctor' -l for -x -a 'efficiency correctness' -d 'what the lock is for'
complete -c pawl -n '__pawl_verb run hold' -s n -l nb -l nonblock -l nonblocking -l nowait -d 'do not wait'
complete -c pawl -n '__pawl_verb run hold' -s s -l shared -d 'with other shared holders'
complete -c pawl -n '__pawl_verb run hold' -s x -s e -l exclusive -d alone
complete -c pawl -n '__pawl_verb run hold' -s E -l conflict-exit-code -x -d 'exit code in place of 123 and 124'
complete -c pawl -n '__pawl_verb run hold' -l max-hold -x -d 'at most so long'
complete -c pawl -n '__pawl_verb hold' -s d -l detach -d 'in the background'
complete -c pawl -n '__pawl_verb run hold who watch break' -a '(__pawl_locks)' -d lock

complete -c pawl -n '__pawl_verb run' -l grace -x -d 'from SIGTERM to SIGKILL'
complete -c pawl -n '__pawl_verb run' -l on-lost -x -a 'term kill' -d 'what to send'
complete -c pawl -n '__pawl_verb run' -l hold-at-least -x -d 'at least so long'
complete -c pawl -n '__pawl_verb run' -l repeat -d 'again and again'
complete -c pawl -n '__pawl_verb run' -l receipt -r -F -d 'append a line of JSON'
complete -c pawl -n '__pawl_verb run hold' -l metrics-dir -x -a '(__fish_complete_directories)' -d 'counters for Prometheus'
complete -c pawl -n '__pawl_verb run' -l seal -x -d 'tell the resource first'

complete -c pawl -n '__pawl_verb watch' -l every -x -d 'how often to ask'
complete -c pawl -n '__pawl_verb break' -l now -d 'free at once'

complete -c pawl -n '__pawl_verb init guard' -l print -d 'print the SQL'
complete -c pawl -n '__pawl_verb init' -l floor -x -d 'redlock: tokens go on above this'
complete -c pawl -n '__pawl_verb token' -a 'show advance'
complete -c pawl -n '__pawl_verb token guard' -l to -x -d 'at least this'
complete -c pawl -n '__pawl_verb guard' -a 'put get seal exec audit install reset test'
complete -c pawl -n '__pawl_verb guard' -l lock -x -d 'name of the lock'
complete -c pawl -n '__pawl_verb guard' -l token -x -d 'its token'
complete -c pawl -n '__pawl_verb guard' -l by -x -d 'who writes'
complete -c pawl -n '__pawl_verb guard' -l rule -x -a 'ge gt seq' -d 'which tokens pass'
complete -c pawl -n '__pawl_verb guard' -l accept-jump -d 'take a token far ahead'
complete -c pawl -n '__pawl_verb guard' -l seq -x -d 'number of the write'
complete -c pawl -n '__pawl_verb guard' -l why -x -d reason
complete -c pawl -n '__pawl_verb guard' -l exec -d 'test a program'
complete -c pawl -n '__pawl_verb guard' -l rounds -x -d 'of writers at once'
complete -c pawl -n '__pawl_verb guard' -l protect -x -d 'no write without a token'
complete -c pawl -n '__pawl_verb guard' -l resource -x -d 'of a row'
complete -c pawl -n '__pawl_verb demo' -a 'zombie partition stale-release redis-failover pooler-leak'
