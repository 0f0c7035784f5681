#!/usr/bin/python3
"""summary.py LOG STATUS OUT LABEL: counts the test cases of one `meson test` run.

LOG is meson's testlog.json, STATUS what meson returned. Prints the output of every test that failed, then one line; writes
"N passed, N failed[, N skipped]" to OUT. A test program that speaks TAP counts by its cases, any other one as one case; a
program that died, timed out or ran fewer cases than planned counts one failure more. Fails if something failed, nothing
ran, or, under CI=true, a whole program was skipped (its server was missing: CI must have it), unless it says that it
wants PAWL_TEST_FULL. What skip() of cmocka 1.1 prints, "not ok 1 # SKIP", is a skip, whatever meson makes of it.
"""
import json
import os
import re
import sys

CASE = re.compile(r"^(not )?ok\b(.*)$")
PLAN = re.compile(r"^1\.\.(\d+)")
LINES = 300


def count(test):
    """(passed, failed, skipped) of one test program."""
    passed = failed = skipped = 0
    planned = None
    for line in (test.get("stdout") or "").splitlines():
        case, plan = CASE.match(line), PLAN.match(line)
        if plan and planned is None:
            planned = int(plan.group(1))
        if not case:
            continue
        if re.search(r"#\s*skip\b", case.group(2), re.I):
            skipped += 1
        elif case.group(1):
            failed += 1
        else:
            passed += 1
    result = test["result"]
    if result == "FAIL" and skipped and not failed and test.get("returncode") == 0:
        result = "OK"
    if planned is None:
        passed = failed = skipped = 0
    if result == "SKIP" and not failed and not passed:
        return 0, 0, max(skipped, 1)
    if result in ("OK", "EXPECTEDFAIL", "SKIP"):
        return (passed, failed, skipped) if passed + failed + skipped else (1, 0, 0)
    return passed, max(failed, 1), skipped


def show(test):
    print(f"\n===== {test['name']}: {test['result']} (exit {test.get('returncode')}, {test['duration']:.1f} s)")
    for key in ("stdout", "stderr"):
        lines = (test.get(key) or "").splitlines()
        if not lines:
            continue
        print(f"----- {key}")
        if len(lines) > 2 * LINES:
            lines = lines[:LINES] + [f"... {len(lines) - 2 * LINES} lines left out ..."] + lines[-LINES:]
        print("\n".join(lines))


def main():
    log, status, out, label = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    tests = []
    if os.path.exists(log):
        with open(log, encoding="utf-8", errors="replace") as file:
            tests = [json.loads(line) for line in file if line.strip()]
    total = [0, 0, 0]
    whole = []
    again = []  # by steady.py
    explained = 0  # programs that failed for meson, and not for us
    seconds = 0.0
    for test in tests:
        got = count(test)
        total = [a + b for a, b in zip(total, got)]
        seconds += test["duration"]
        if got[1]:
            show(test)
        if got[2] and not got[0] and not got[1] and "PAWL_TEST_FULL" not in (test.get("stdout") or ""):
            whole.append(test["name"])
        if re.search("^# again: ", test.get("stderr") or "", re.M):
            again.append(test["name"])
        explained += test["result"] == "FAIL" and not got[1]
    passed, failed, skipped = total
    if status in (124, 137):
        print(f"\n{label}: stopped, the run took too long")
    if status and not failed and status != explained:
        failed += 1
        print(f"\n{label}: meson test returned {status} without a failing test")
    if again:
        print(f"\n{label}: run again, since the machine stood still while they failed: {', '.join(again)}")
    if whole:
        print(f"\n{label}: skipped as a whole: {', '.join(whole)}")
        if os.environ.get("CI") == "true":
            failed += len(whole)
            print(f"{label}: under CI=true that is a failure")
    if not passed and not failed:
        failed = 1
        print(f"\n{label}: nothing ran")
    line = f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")
    with open(out, "w", encoding="utf-8") as file:
        file.write(line + "\n")
    print(f"\n{label}: {len(tests)} programs, {line} ({seconds:.0f} s of tests)")
    return 1 if failed else 0


sys.exit(main())
