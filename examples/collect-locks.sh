#!/bin/sh
# collect-locks.sh DIR [MINUTES]: removes pawl's lock files in DIR that nobody holds, and that nobody used for MINUTES (30 days).
#
# Safe beside running programs: a file is removed only while its lock is ours, and only if its name still leads to it. Who
# was waiting notices, and begins again at a new file. Tokens stand in a file of their own and go on rising. A `pawl run -n`
# may find the lock busy in that very moment.
set -u
dir=${1:?usage: collect-locks.sh DIR [MINUTES]}
find "$dir" -maxdepth 1 -type f ! -name '.*' -mmin "+${2:-43200}" -exec sh -c '
    for file; do
        {
            flock -n 9 && [ /dev/fd/9 -ef "$file" ] && [ "$(head -n 1 <&9 | tr -d "\0")" = "pawl lock 1" ] && rm -- "$file"
        } 9<"$file"
    done
    true' sh {} +
