#!/bin/sh
# shared_file.sh LOCKS DIRECTORY LINE: adds a line to a file that several machines write and many read without a lock.
#
# Readers get the old file or the new one, never a part: pawl guard get dir:DIRECTORY list. A writer that stalled for longer than
# its lock lasted is refused, instead of taking back the lines that others have added since.
set -eu
: "${PAWL:=pawl}"
export PAWL LINE="$3" GUARD="dir:$2"
exec "$PAWL" run -u "$1" --seal "$GUARD#list" list -- sh -c '
    { "$PAWL" guard get "$GUARD" list; printf "%s\n" "$LINE"; } | "$PAWL" guard put "$GUARD" list'
