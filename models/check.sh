#!/bin/bash
# check.sh [--large]: the small instances of the models, about a minute: each that is sound must have no error in its whole
# state space, each that is broken on purpose must be caught. --large: some minutes and 3 GB more. Needs spin, gcc and python3.
# As a test (check.sh --test) it takes a few of them, all with PAWL_TEST_FULL=1, the large ones too with PAWL_TEST_SOAK=1.
set -eu
few='' large=''
case ${1:-} in
--large) large=1 ;;
--test)
    if ! command -v spin >/dev/null; then echo "no spin here"; exit 77; fi
    [ -n "${PAWL_TEST_FULL:-}" ] || few=1
    large=${PAWL_TEST_SOAK:-}
    ;;
esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OUT=$(mktemp -d)
export OUT
trap 'rm -rf "$OUT"' EXIT
failed=0

want() { # sound|broken NAME MODEL SPIN-FLAGS [GCC-FLAGS]
    local expect=$1 line errors
    shift
    line=$("$here/run.sh" "$1" "$here/$2" "$3" "${4:--DCOLLAPSE}")
    case $line in
    *NOTCOMPLETE*"assertion violated"*) errors=broken ;;
    *NOTCOMPLETE*) errors=unfinished ;;
    *"errors: 0 "*) errors=sound ;;
    *"assertion violated"*) errors=broken ;;
    *) errors="nothing: $line" ;;
    esac
    if [ "$errors" = "$expect" ]; then echo "ok      $line"; else echo "NOT OK  expected $expect: $line"; failed=1; fi
}

want broken b1-noseal-max redlock.pml "-DA=2 -DCMAX=3 -DNOSEAL=1 -DDUP=0" "-DCOLLAPSE -DBFS"
want broken b3-owner-only-lostreply redlock.pml "-DA=2 -DCMAX=4 -DSEAL=1 -DDUP=0" "-DCOLLAPSE -DBFS"
want sound g7-renew2-h0 redlock.pml "-DA=2 -DCMAX=3 -DFAST=1 -DRENEW=2" "-DHC4"
want broken s3-mode3 reseed.pml "-DMODE=3" "-DCOLLAPSE -DBFS"
want broken h1-votes-at-once reseed.pml "-DMODE=2 -DHOLD=1 -DWAIT=0 -DCMAX=2" "-DCOLLAPSE -DBFS"
want sound h2-hold reseed.pml "-DMODE=2 -DHOLD=1 -DCMAX=2" "-DHC4"
want broken t1-trusts-promoted reseed.pml "-DMODE=2 -DHOLD=1 -DKEPT=1 -DZEROS=0 -DCMAX=2" "-DCOLLAPSE -DBFS"
want sound t4-kept reseed.pml "-DMODE=2 -DHOLD=1 -DKEPT=1 -DCMAX=2" "-DHC4"
want broken f1-ends-any-wait reseed.pml "-DMODE=2 -DHOLD=1 -DOP=1 -DOWN=0 -DCMAX=2" "-DHC4"
if [ -z "$few" ]; then
    want broken b2-seal-unchecked redlock.pml "-DA=2 -DCMAX=3 -DSEAL=0 -DDUP=0" "-DCOLLAPSE -DBFS"
    want broken b5-badhint redlock.pml "-DA=2 -DCMAX=3 -DFAST=1 -DHMAX=3 -DBADHINT=1 -DDUP=0" "-DCOLLAPSE -DBFS"
    want broken b8-renew-recreate redlock.pml "-DA=2 -DCMAX=4 -DRENEW=3 -DDUP=0" "-DCOLLAPSE -DBFS"
    want broken b9-lose1-N3 redlock.pml "-DA=2 -DCMAX=3 -DLOSE=1" "-DCOLLAPSE -DBFS"
    want broken r1-reach2 redlock.pml "-DA=2 -DCMAX=4 -DREACH=2" "-DCOLLAPSE -DBFS"
    want sound g4-owner-masked-nodup redlock.pml "-DA=2 -DCMAX=4 -DSEAL=2 -DDUP=0"
    want sound h3-hold-roll reseed.pml "-DMODE=2 -DHOLD=1 -DROLL=1 -DCMAX=2" "-DHC4"
    want broken h4-noborn reseed.pml "-DMODE=2 -DHOLD=1 -DROLL=1 -DCLOCK=0 -DWAIT=0 -DNOBORN=1 -DCMAX=2" "-DHC4"
    want broken h0-reach2 reseed.pml "-DMODE=2 -DHOLD=1 -DCMAX=2 -DREACH=2" "-DCOLLAPSE -DBFS"
    want broken t0-reach2 reseed.pml "-DMODE=2 -DHOLD=1 -DKEPT=1 -DCMAX=2 -DREACH=2" "-DHC4"
    want broken t2-run-id-alone reseed.pml "-DMODE=2 -DHOLD=1 -DKEPT=1 -DRUNID=1 -DCMAX=2" "-DCOLLAPSE -DBFS"
    want broken t3-an-hour-later reseed.pml "-DMODE=2 -DHOLD=1 -DKEPT=1 -DHOUR=1 -DCMAX=2" "-DCOLLAPSE -DBFS"
    want broken f0-reach2 reseed.pml "-DMODE=2 -DHOLD=1 -DOP=1 -DCMAX=2 -DREACH=2" "-DHC4"
    want broken f2-somebody-holds reseed.pml "-DMODE=2 -DHOLD=1 -DOP=1 -DVOUCH=0 -DCMAX=2" "-DHC4"
    want sound f3-floor reseed.pml "-DMODE=2 -DHOLD=1 -DOP=1 -DCMAX=2" "-DHC4"
    want broken s0-mode0 reseed.pml "-DMODE=0" "-DCOLLAPSE -DBFS"
    want sound s5c-member-5to3-c1 reseed.pml "-DMODE=5 -DN=5 -DOLDM=31 -DOLDQ=3 -DNEWM=7 -DNEWQ=2 -DCMAX=1" "-DHC4"
fi
if [ -n "$large" ]; then
    want broken b4-owner-masked-dup redlock.pml "-DA=2 -DCMAX=4 -DSEAL=2 -DDUP=1" "-DCOLLAPSE -DBFS"
    want broken b7-renew-owner-only redlock.pml "-DA=2 -DCMAX=4 -DRENEW=1" "-DCOLLAPSE -DBFS"
    want broken b10-lose1-N3-inc redlock.pml "-DA=2 -DCMAX=3 -DLOSE=1 -DINC=1" "-DCOLLAPSE -DBFS"
    want sound g1-core-A2 redlock.pml "-DA=2 -DCMAX=4"
    want sound g9-res-A3 redlock.pml "-DA=3 -DCMAX=3 -DFAST=1 -DRES=1" "-DHC4"
    want broken s1-mode1 reseed.pml "-DMODE=1 -DHMAX=3" "-DCOLLAPSE -DBFS"
    want broken s2c-noinc reseed.pml "-DMODE=2 -DNOINC=1 -DLMAX=2" "-DCOLLAPSE -DBFS"
    want sound s2-mode2 reseed.pml "-DMODE=2" "-DHC4"
    want sound h6-hold-rn2 reseed.pml "-DMODE=2 -DHOLD=1 -DRN=2 -DLMAX=2 -DCMAX=2" "-DHC4"
    want sound t5-kept-loses2 reseed.pml "-DMODE=2 -DHOLD=1 -DKEPT=1 -DCMAX=2 -DLMAX=2" "-DHC4"
    want broken f4-marks-later reseed.pml "-DMODE=2 -DHOLD=1 -DOP=1 -DMARK=0 -DLMAX=2 -DCMAX=2" "-DHC4"
    want sound f5-floor-loses2 reseed.pml "-DMODE=2 -DHOLD=1 -DOP=1 -DLMAX=2 -DCMAX=2" "-DHC4"
    want sound s2b-mode2-hint reseed.pml "-DMODE=2 -DHMAX=3" "-DHC4"
fi

# tokens_sim.py --mech: number of bad interleavings, mechanism by mechanism; 0 is a mechanism that is used.
bad=$(python3 "$here/tokens_sim.py" --mech | sed 's/.*interleavings, *\([0-9]*\) bad.*/\1/' | tr '\n' ' ')
want="80 62 0 1 0 0 0 330 0 0 40 0 "
if [ "$bad" = "$want" ]; then echo "ok      tokens_sim.py --mech: $bad"; else echo "NOT OK  tokens_sim.py --mech: $bad, expected $want"; failed=1; fi
exit $failed
