#!/usr/bin/python3
"""redis_peers.py PAWL: pawl beside redis-py's Lock and a textbook SET NX client, both ways, on one Redis. Speaks TAP.

Each excludes the other, waits the other out, and no release takes what the other holds."""
import json
import os
import subprocess
import sys
import threading
import time

try:
    import redis
except ImportError:
    print("1..0 # SKIP no python3-redis here")
    sys.exit(0)

PAWL, PORT = sys.argv[1], int(os.environ["PAWL_TEST_REDIS_PORT"])
URL = "redis://127.0.0.1:%d?prefix=" % PORT  # the bare name is the key, as the others write it
r = redis.Redis(port=PORT)
DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
number = failed = 0


def pawl(*arguments):
    return subprocess.run([PAWL, "run", "-u", URL, *arguments], capture_output=True, text=True, timeout=60)


def check(name, ok, detail=""):
    global number, failed
    number += 1
    failed += not ok
    print("%s %d - %s" % ("ok" if ok else "not ok", number, name))
    if not ok and detail:
        print("# " + str(detail).replace("\n", "\n# "))


def until(condition, seconds=5):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Holding:
    """pawl hold, for as long as its stdin is open."""

    def __init__(self, name, *options):
        self.process = subprocess.Popen([PAWL, "hold", "-u", URL, *options, name], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        while json.loads(self.process.stdout.readline())["event"] != "held":
            pass

    def end(self):
        self.process.stdin.close()
        self.process.wait(10)


# --- pawl holds ---
held = Holding("a")
check("SET NX is refused while pawl holds", r.set("a", "me", nx=True, px=1000) is None)
check("redis-py's Lock is refused while pawl holds", not r.lock("a", timeout=5).acquire(blocking=False))
check("a textbook release of somebody else takes nothing", r.eval(DELETE, 1, "a", "me") == 0 and r.exists("a"))
try:
    stranger = r.lock("a", timeout=5)
    stranger.local.token = b"stranger"
    stranger.release()
    check("redis-py's release of somebody else takes nothing", False)
except redis.exceptions.LockError:
    check("redis-py's release of somebody else takes nothing", bool(r.exists("a")))
held.end()
check("the key is gone when pawl let go", until(lambda: not r.exists("a")))
check("then SET NX gets it", r.set("a", "me", nx=True, px=60000))

# --- the others hold ---
result = pawl("-n", "a", "--", "true")
check("pawl is busy (123) while SET NX holds", result.returncode == 123, result)
before = r.info("commandstats")
start = time.monotonic()
result = pawl("-w", "1", "a", "--", "true")
took = time.monotonic() - start
check("pawl waits as long as it was told (124)", result.returncode == 124 and 1 <= took < 20, (result, took))
after = r.info("commandstats")
asked = sum(after.get(c, {}).get("calls", 0) - before.get(c, {}).get("calls", 0) for c in ("cmdstat_evalsha", "cmdstat_eval"))
check("and asks some ten times a second only", 3 <= asked <= 30 * max(took, 1), asked)
check("the other's value is untouched", r.get("a") == b"me")
threading.Timer(0.5, lambda: r.eval(DELETE, 1, "a", "me")).start()
left = r.pttl("a") / 1000
start = time.monotonic()
result = pawl("-w", "40", "a", "--", "true")
took = time.monotonic() - start
check("pawl gets it soon after the other let go", result.returncode == 0 and took < min(20, left), (result, took))

lock = r.lock("a", timeout=1)
start = time.monotonic()
lock.acquire()
result = pawl("-w", "40", "a", "--", "true")
took = time.monotonic() - start
check("pawl waits out the ttl of a redis-py Lock that is not released", result.returncode == 0 and 1 <= took < 20, took)
try:
    lock.release()
    check("whose late release is refused", False)
except redis.exceptions.LockError:
    check("whose late release is refused", True)

# --- contention: never two at once, whoever they are ---
inside = overlaps = turns = mine = theirs = 0
guard = threading.Lock()


def section():
    global inside, overlaps, turns
    with guard:
        inside += 1
        overlaps += inside > 1
        turns += 1
    time.sleep(0.002)
    with guard:
        inside -= 1


def python_worker(stop):
    global theirs
    client = redis.Redis(port=PORT)
    while time.monotonic() < stop:
        with client.lock("c", timeout=5, sleep=0.003):
            section()
            theirs += 1


def pawl_worker(stop):
    global mine
    while time.monotonic() < stop:
        held = Holding("c")
        section()
        mine += 1
        held.end()


stop = time.monotonic() + 3
workers = [threading.Thread(target=w, args=(stop,)) for w in (python_worker, python_worker, pawl_worker, pawl_worker)]
for w in workers:
    w.start()
for w in workers:
    w.join()
check("no overlap in %d turns of both" % turns, overlaps == 0 and turns > 20, (overlaps, turns))

check("both kinds got turns", mine > 0 and theirs > 0, (mine, theirs))

# --- redis-cli, as the shell scripts do it ---
cli = ["redis-cli", "-p", str(PORT)]
answer = subprocess.run(cli + ["SET", "s", "token", "NX", "PX", "2000"], capture_output=True, text=True).stdout.strip()
check("redis-cli SET NX", answer == "OK")
check("pawl is busy then", pawl("-n", "s", "--", "true").returncode == 123)
result = subprocess.run([PAWL, "who", "-u", URL, "s"], capture_output=True, text=True)
check("who shows a holder that is not pawl", result.returncode == 0, result)
print("1..%d" % number)
os._exit(1 if failed else 0)
