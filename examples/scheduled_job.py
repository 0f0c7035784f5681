#!/usr/bin/env python3
"""scheduled_job.py LOCKS GUARD DAY: a job that runs once a day, though every machine starts it.

The lock keeps two machines from running it at the same time; the record behind the guard keeps the second one from running
it after the first; and a machine that slept through its turn cannot write an old day over a newer one."""
import json
import os
import subprocess
import sys

PAWL = os.environ.get("PAWL", "pawl")


class Lock:
    """pawl hold: one JSON line an event; closing its stdin gives the lock back."""

    def __init__(self, url, name):
        self.process = subprocess.Popen([PAWL, "hold", "-u", url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "held":
                self.name, self.token = name, event["token"]  # a string: a token has 16 digits
                return
        raise SystemExit("%s: not held (%d)" % (name, self.process.wait()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.wait()


def guard(verb, url, resource, lock=None, data=None):
    words = [PAWL, "guard", verb, url, resource]
    if lock:
        words += ["--lock", lock.name, "--token", lock.token, "--by", "scheduled_job.py"]
    return subprocess.run(words, input=data, stdout=subprocess.PIPE, text=True)


def main(locks, url, day):
    with Lock(locks, "daily-report") as lock:
        if guard("seal", url, "daily-report", lock).returncode:
            raise SystemExit("somebody later has taken over")
        last = guard("get", url, "daily-report").stdout.strip()
        if last >= day:  # ISO days sort as texts
            print("done already for", last)
            return
        print("the report of", day)
        if guard("put", url, "daily-report", lock, day).returncode:
            raise SystemExit("the lock was lost meanwhile: the record is not ours to write")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
