#!/usr/bin/python3
"""pages.py PAGE: runs every console block of a page (README, docs/TUTORIAL.md) in one shell on a terminal and compares what it prints, numbers,
times and names of people and machines masked; then compiles and runs the C program. TAP, one case a block.

Needs PATH with pawl in it, PAWL_TEST_REDIS (with-server redis) or PAWL_TEST_REDLOCK (the ports 7001 to 7005 of the page), BUILD and SOURCE
(meson's directories).
"""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

PATIENCE = 20.0  # seconds for what a command prints, or what it makes another one print


def mask(line):
    line = re.sub(r"\s{2,}# .*$", "", line)
    line = re.sub(r"\b(file|redis):\S+", r"\1:URL", line)
    line = re.sub(r"[\w.-]+@[\w.-]+", "USER@HOST", line)
    line = re.sub(r"\b\d+(\.\d+)? (ms|s|min|h)\b( \d+ (s|min)\b)?", "TIME", line)
    line = re.sub(r"\b\d\d:\d\d:\d\d\b", "CLOCK", line)
    line = re.sub(r"\btoken \d{10,}|\bis \d{10,}", lambda m: m.group(0).split()[0] + " TOKEN", line)
    line = re.sub(r"token( +)\d{10,}", r"token\1TOKEN", line)
    line = re.sub(r"\bpid \d+", "pid PID", line)
    return re.sub(r"\s+", " ", line).strip()


def blocks(text, language):
    return [found.split("\n") for found in re.findall(rf"^```{language}\n(.*?)\n```$", text, flags=re.M | re.S)]


def steps(block):
    """[(command, [line that it prints])]"""
    found = []
    for line in block:
        if line.startswith("$ "):
            found.append((re.sub(r"\s{2,}# .*$", "", line[2:]), []))
        else:
            found[-1][1].append(mask(line))
    return found


class Shell:
    """bash with job control on a terminal of its own; commands come through a pipe."""

    def __init__(self, folder):
        commands, self.stdin = os.pipe()
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.dup2(commands, 0)
            os.chdir(folder)
            os.mkdir("default")
            os.environ.update(PAWL_URL=f"file:{folder}/default", PAWL_CONFIG="/dev/null", TERM="dumb", LC_ALL="C.UTF-8")
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-m"])
        os.close(commands)
        self.count = 0

    def send(self, text):
        os.write(self.stdin, text.encode() + b"\n")

    def read(self, until):
        """Reads until `until(text so far)` or out of patience."""
        text, end = "", time.monotonic() + PATIENCE
        while not until(text) and time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.05)[0]:
                try:
                    text += os.read(self.terminal, 65536).decode(errors="replace")
                except OSError:
                    break
        return text

    def run(self, command, expected):
        self.count += 1
        mark = f"@{self.count}@"
        self.send(command)
        if command.endswith("&"):
            self.send("timeout 20 bash -c 'until pgrep -s 0 -x sleep; do read -rt 0.02 <> <(:); done' >/dev/null")
        self.send(f"printf '%s%s\\n' '@{self.count}' '@'")

        def lines(text):
            shown = [line for line in text.replace("\r", "").split("\n") if line != mark]
            shown = [line for line in shown if not re.match(r"\[\d+\]|.*line \d+: +\d+ (Killed|Terminated)", line)]
            # what pawl says of a machine that stood still meanwhile is on no page
            shown = [line for line in shown if not re.match(r"pawl: .*: (timers of this machine|renewals) came .*late", line)]
            return [mask(line) for line in shown if line.strip()]

        text = self.read(lambda text: mark in text and lines(text) == expected)
        return lines(text)

    def end(self):
        self.send("kill %% 2>/dev/null; wait; exit")
        self.read(lambda text: False if not text else "exit" in text)
        os.close(self.stdin)
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


def c_program(program, folder):
    source = os.path.join(folder, "a.c")
    library = os.path.join(os.environ["BUILD"], "src")
    with open(source, "w", encoding="utf-8") as file:
        file.write("\n".join(program).replace('"file:"', f'"file:{folder}/default"') + "\n")
    subprocess.run(["cc", *os.environ.get("CFLAGS", "").split(), "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o", source[:-2], source,
                    "-I" + os.path.join(os.environ["SOURCE"], "include"), "-L" + library, "-lpawl"], check=True)
    return subprocess.run([source[:-2]], env={"LD_LIBRARY_PATH": library}, capture_output=True, text=True, check=False)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    page = os.path.basename(sys.argv[1])
    if "redis-cli" in text and not shutil.which("redis-cli"):
        print("1..0 # SKIP no redis-cli")
        return 0
    text = text.replace("redis://localhost", os.environ.get("PAWL_TEST_REDIS", ""))
    for number, port in enumerate(re.findall(r":(\d+)", os.environ.get("PAWL_TEST_REDLOCK", "")), 7001):
        text = re.sub(rf"\b{number}\b", port, text)
    console, programs = blocks(text, "console"), blocks(text, "c")
    print(f"1..{len(console) + len(programs)}")
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(folder)
        for number, block in enumerate(console, 1):
            wrong = []
            for command, expected in steps(block):
                shown = shell.run(command, expected)
                if shown != expected:
                    wrong += [f"# $ {command}"] + [f"# - {line}" for line in expected] + [f"# + {line}" for line in shown]
            bad += bool(wrong)
            print(f"{'not ok' if wrong else 'ok'} {number} - {page}: {block[0][2:]}", *wrong, sep="\n", flush=True)
        shell.end()
        for number, program in enumerate(programs, len(console) + 1):
            done = c_program(program, folder)
            good = done.returncode == 0 and re.fullmatch(r"token \d{10,}\n", done.stdout)
            bad += not good
            print(f"{'ok' if good else 'not ok'} {number} - {page}: the C program prints a token", flush=True)
            if not good:
                print(f"# {done}")
    return 1 if bad else 0


sys.exit(main())
