# What a packager or a program that links libpawl relies on: the installed tree, pkg-config, symbols, libraries.
# BUILD is meson's build directory, SOURCE its source directory.

setup_file() {
    export ROOT="$BATS_FILE_TMPDIR/root"
    DESTDIR="$ROOT" meson install -C "$BUILD" --no-rebuild >"$BATS_FILE_TMPDIR/install.log" 2>&1
    PC=$(find "$ROOT" -name libpawl.pc)
    PREFIX="$ROOT$(sed -n 's/^prefix=//p' "$PC")"
    LIB=$(dirname "$(find "$ROOT" -name libpawl.so)")
    export PC PREFIX LIB
    export PKG_CONFIG_PATH="${PC%/*}" PKG_CONFIG_SYSROOT_DIR="$ROOT" LD_LIBRARY_PATH="$LIB"
}

@test "install: command, lab, library, header, pkg-config file" {
    [ -x "$PREFIX/bin/pawl" ]
    [ -x "$PREFIX/bin/pawl-lab" ]
    [ -f "$PREFIX/include/pawl.h" ]
    [ -f "$PREFIX/include/pawl_guard.h" ]
    [ -L "$LIB/libpawl.so.0" ]
    [ -z "$(find "$ROOT" -name '*.a' -o -path '*internal*')" ]
}

@test "install: modules lie in pawl/ beside the library, and the installed library finds them" {
    for module in "$BUILD"/src/*/pawl-*.so; do
        [ -e "$module" ] || continue
        [ -f "$LIB/pawl/$(basename "$module")" ]
    done
    run "$PREFIX/bin/pawl" version
    echo "$output"
    [ "$status" = 0 ]
    for module in "$LIB"/pawl/pawl-*.so; do
        [ -e "$module" ] || continue
        name=${module##*/pawl-}
        case $name in guard*) continue ;; esac
        [[ " $output " == *" ${name%.so}"[\ \;,]* ]]
    done
}

@test "pkg-config: a C program compiles, links and runs with what it prints" {
    cat >"$BATS_TEST_TMPDIR/a.c" <<'EOF'
#include <pawl.h>
#include <stdio.h>
int main(void) { return puts(pawl_version()) < 0; }
EOF
    run pkg-config --print-errors --cflags --libs libpawl
    [ "$status" = 0 ]
    # shellcheck disable=SC2046,SC2086
    cc ${CFLAGS:-} -std=c11 -Wall -Wextra -Wpedantic -Werror -o "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/a.c" $(pkg-config --cflags --libs libpawl)
    run "$BATS_TEST_TMPDIR/a"
    echo "$output"
    [[ "$output" == "$(pkg-config --modversion libpawl) "* ]]
}

@test "symbols: libpawl.so exports pawl_ and nothing else, under a version node" {
    run bash -c 'nm -D --defined-only "$LIB/libpawl.so.0" | awk "\$2 != \"A\" { print \$3 }"'
    echo "$output"
    [ -n "$output" ]
    ! grep -v '^pawl_[a-z_]*@@LIBPAWL_0$' <<<"$output"
}

# Usage: symbols LIBRARY HEADER...
symbols() {
    local library=$1
    shift
    sed -e 's,/\*.*\*/,,' -e /^typedef/d "$@" | grep -o '\bpawl_[a-z_]*(' | tr -d '(' | sort -u >"$BATS_TEST_TMPDIR/declared"
    nm -D --defined-only "$library" | sed -n 's/.* \(pawl_[a-z_]*\)@.*/\1/p' | sort -u >"$BATS_TEST_TMPDIR/exported"
    run diff "$BATS_TEST_TMPDIR/declared" "$BATS_TEST_TMPDIR/exported"
    echo "$output"
    [ "$status" = 0 ]
}

@test "symbols: every function of the headers is there, and no other" {
    symbols "$LIB/libpawl.so.0" "$PREFIX/include/pawl.h" "$PREFIX/include/pawl_guard.h"
    [ ! -e "$LIB/libpawl-postgres.so" ] || symbols "$LIB/libpawl-postgres.so.0" "$PREFIX/include/pawl_postgres.h"
}

@test "libpawl-postgres: C and C++ programs compile, link and run with what pkg-config prints" {
    [ -e "$LIB/libpawl-postgres.so" ] || skip "not in this build"
    cat >"$BATS_TEST_TMPDIR/p.c" <<'EOF'
#include <pawl_postgres.h>
#include <libpq-fe.h>
int main(void) {
    int64_t token = 0;
    PGconn *none = NULL;
    return pawl_postgres_lock(none, "n", NULL, &token, NULL) != PAWL_EINVALID;
}
EOF
    # shellcheck disable=SC2046
    cc ${CFLAGS:-} -std=c11 -Wall -Wextra -Wpedantic -Werror -o "$BATS_TEST_TMPDIR/p" "$BATS_TEST_TMPDIR/p.c" \
        $(pkg-config --cflags --libs libpawl-postgres) $(env -u PKG_CONFIG_SYSROOT_DIR pkg-config --cflags --libs libpq)
    "$BATS_TEST_TMPDIR/p"
    command -v c++ || return 0
    # shellcheck disable=SC2046
    c++ ${CFLAGS:-} -Wall -Wextra -Werror -x c++ -o "$BATS_TEST_TMPDIR/pp" "$BATS_TEST_TMPDIR/p.c" -x none \
        $(pkg-config --cflags --libs libpawl-postgres) $(env -u PKG_CONFIG_SYSROOT_DIR pkg-config --cflags --libs libpq)
    "$BATS_TEST_TMPDIR/pp"
}

@test "symbols: a module exports its table and its contract number only" {
    for module in "$LIB"/pawl/pawl-*.so; do
        [ -e "$module" ] || continue
        run bash -c "nm -D --defined-only '$module' | awk '{ print \$3 }' | grep -v '^\(__odr_asan\.\)\?pawl_[a-z_]*$'"
        echo "$module: $output"
        [ -z "$output" ]
    done
}

@test "libraries: who uses file: alone loads no client of a service" {
    run ldd "$PREFIX/bin/pawl"
    echo "$output"
    [[ "$output" == *libpawl.so.0* ]]
    ! grep -E 'libpq|hiredis|libssl|libcrypto|nghttp2|protobuf|sqlite|jansson|not found' <<<"$output"
}

@test "soname: libpawl.so.0" {
    run readelf -d "$LIB/libpawl.so"
    [[ "$output" == *"soname: [libpawl.so.0]"* ]]
}
