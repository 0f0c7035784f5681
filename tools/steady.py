#!/usr/bin/python3
"""steady.py PROGRAM...: runs a test program; again, if it failed on a machine that stood still meanwhile.

What the tests prove is often about time: a claim lapses after half a second, a lock after its ttl. A machine that stops for
longer than that makes each of these come true, and then a failure says nothing of pawl. So this program sleeps 10 ms at a
time beside the test. If it was once late by STILL seconds or more and the test failed, the test is run again, TRIES times at
most, and stderr says so: `# again: ...` (summary.py lists them). A failure on a machine that kept up is final, and so is
what ends by a time limit. stdout is that of the last run.
"""
import os
import subprocess
import sys
import tempfile
import threading
import time

STILL = 0.1
TRIES = 3


def run(command, out):
    """(exit status, the longest time that this program stood still while it waited)"""
    still, before, ended = 0.0, time.monotonic(), threading.Event()
    test = subprocess.Popen(command, stdout=out)
    threading.Thread(target=lambda: (test.wait(), ended.set()), daemon=True).start()
    while not ended.wait(0.01):
        now = time.monotonic()
        still, before = max(still, now - before - 0.01), now
    return test.returncode, max(still, time.monotonic() - before - 0.01)


def main():
    for left in reversed(range(TRIES)):
        with tempfile.TemporaryFile() as out:
            status, still = run(sys.argv[1:], out)
            out.seek(0)
            text = out.read()
        if status == 0 or status == 77 or still < STILL or not left:
            break
        failed = [line for line in text.decode(errors="replace").splitlines() if not line.startswith(("ok ", "1.."))]
        print(f"# again: failed with {status} while the machine stood still for {still:.2f} s:", file=sys.stderr)
        print("\n".join("#   " + line for line in failed[-40:]), file=sys.stderr, flush=True)
    sys.stdout.buffer.write(text)
    sys.stdout.flush()
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


sys.exit(main())
