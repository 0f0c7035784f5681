# packages.sh: what ./run and ./check need from Debian 12, and how they get it. Sourced, not run.
# To add a package, add it to one of the two lists.

build_packages="gcc libc6-dev meson ninja-build pkg-config libhiredis-dev libjansson-dev libnghttp2-dev libpq-dev libprotobuf-c-dev libssl-dev libsqlite3-dev protobuf-c-compiler python3"
test_packages="$build_packages g++ mandoc libcmocka-dev bats python3 python3-redis jq procps util-linux spin strace sqlite3
 zsh fish curl openssl iproute2 prometheus prometheus-node-exporter redis-server redis-sentinel redis-tools postgresql pgbouncer etcd-server etcd-client"
fuzz_packages="clang libclang-rt-14-dev"

say() { printf '%s\n' "$*" >&2; }

missing_packages() { # PACKAGE...: those that are not installed, one a line
    command -v dpkg-query >/dev/null || return 0 # not Debian: the build says what it misses
    dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null | awk -v want="$*" '
        $2 == "installed" { have[$1] = 1 }
        END { n = split(want, w, /[ \n]+/); for (i = 1; i <= n; i++) if (w[i] != "" && !(w[i] in have)) print w[i] }'
}

# Debian starts a service when its package is installed. The tests start their own, so a policy says no meanwhile.
policy=${PAWL_POLICY:-/usr/sbin/policy-rc.d} # the tests name another one
apt_install() {
    local sudo="" status=0 ours=
    [ "$(id -u)" = 0 ] || sudo="sudo"
    if [ -n "$sudo" ] && ! command -v sudo >/dev/null; then
        say "pawl: not root, and no sudo here. As root: apt-get install $*"
        return 1
    fi
    [ -z "$sudo" ] || [ -t 0 ] || sudo="sudo -n"
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null &&
            $sudo chmod 755 "$policy" && ours=yes
        trap '[ -z "$ours" ] || $sudo rm -f $policy' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
    fi
    local apt="$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3"
    $apt install --no-install-recommends "$@" </dev/null >&2 ||
        { $apt update </dev/null >&2 && $apt install --no-install-recommends "$@" </dev/null >&2; } || status=$?
    [ -z "$ours" ] || $sudo rm -f "$policy"
    trap - EXIT INT TERM
    return $status
}

need_packages() { # PACKAGE...: installs what is missing; asks first on a terminal
    local missing answer
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    missing=$(echo $missing)
    say "pawl: needs these Debian packages: $missing"
    if [ -t 0 ] && [ -t 2 ]; then
        printf 'Install them with apt-get? [Y/n] ' >&2
        read -r answer
        case $answer in [nN]*) return 1 ;; esac
    fi
    apt_install $missing
}

# BUILD_DIR MESON_OPTION...: sets up (anew if damaged or if the options changed) and builds; silent unless it fails.
build() (
    dir=$1 log=$1.log
    shift
    exec 9>"$dir.lock" && flock 9 # two at once build one after the other
    # Meson keeps the old defaults of options in a directory that is set up: begin anew when they changed.
    want="$* $(cksum <meson_options.txt)"
    if [ ! -e "$dir/build.ninja" ] || [ "$(cat "$dir/options" 2>/dev/null)" != "$want" ]; then
        rm -rf "$dir"
        say "pawl: building in $(basename "$dir")"
        meson setup "$dir" "$@" </dev/null >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
        printf '%s' "$want" >"$dir/options"
    fi
    ninja --quiet -C "$dir" </dev/null >"$log" 2>&1 || {
        sed -n '/ERROR:/p; /^FAILED/,$p' "$log" | head -n 200 >&2
        exit 1
    }
)
