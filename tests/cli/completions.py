#!/usr/bin/python3
"""completions.py SHELL: what bash, zsh or fish make of `pawl ...` and a TAB, as somebody sees it who types: an interactive
shell on a terminal, without anybody's settings and without the package bash-completion. TAP.

What was completed is then run, by a pawl that shows its words; fish is asked by `complete -C`, which needs no terminal.
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

PATIENCE = 60.0  # seconds; nothing is decided by it but that a shell hangs
COMPLETIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../completions")
PAWL = os.environ["PAWL_BIN"]


class Shell:
    def __init__(self, name, folder):
        self.count = 0
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvp(name, {"bash": ["bash", "--norc", "--noprofile"], "zsh": ["zsh", "-f"]}[name])
        begin = {"bash": f"source {COMPLETIONS}/pawl.bash",
                 "zsh": f"fpath=({COMPLETIONS} $fpath); autoload -U compinit; compinit -u -D; zle_highlight=(paste:none)"}[name]
        self.run("PS1= PS2= PROMPT= RPROMPT=; unsetopt prompt_sp 2>/dev/null; " + begin)

    def read(self, until):
        text, end = "", time.monotonic() + PATIENCE
        while until not in text:
            if time.monotonic() > end or not select.select([self.terminal], [], [], PATIENCE)[0]:
                raise SystemExit(f"Bail out! nothing came that has {until!r}: {text!r}")
            text += os.read(self.terminal, 65536).decode(errors="replace")
        return text

    def run(self, line):
        self.count += 1
        os.write(self.terminal, f" {line}\n printf '%s%s\\n' '<{self.count}' '>'\n".encode())
        return self.read(f"<{self.count}>")

    def completed(self, line):
        """The words that pawl is called with after `line` and a TAB."""
        return [words.rstrip("/") for words in re.findall(r"\[\[(.*?)\]\]", self.run(line + "\t"))[-1:]]

    def end(self):
        os.write(self.terminal, b"\x03\n exit\n")
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


class Fish:
    """What it offers, put in place of the last word if it is one only, as it does."""

    def __init__(self, _, folder):
        self.folder = folder

    def completed(self, line):
        done = subprocess.run(["fish", "--no-config", "-c", f"source {COMPLETIONS}/pawl.fish; complete -C \"$argv[1]\"", line],
                              cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
        words = line.split(" ")[1:]
        offered = [one.split("\t")[0] for one in done.stdout.splitlines() if one.split("\t")[0].startswith(words[-1])]
        if len(offered) == 1:
            words[-1] = offered[0]
        return [" ".join(words).rstrip("/")]

    def end(self):
        pass


def shortest(word, words):
    return next(word[:n] for n in range(1, len(word) + 1) if n == len(word) or [w for w in words if w.startswith(word[:n])] == [word])


def cases(folder, name):
    verbs = re.findall(r"^  pawl ([a-z]+)", subprocess.run([PAWL, "--help"], capture_output=True, text=True, check=True).stdout, flags=re.M)
    yield from ((shortest(verb, verbs), verb) for verb in verbs)
    yield "who --js", "who --json"
    yield "run --hold-at-l", "run --hold-at-least"
    yield "break --no", "break --now"
    yield "hold --for c", "hold --for correctness"
    yield "run --on-lost k", "run --on-lost kill"
    yield "token adv", "token advance"
    yield "guard ins", "guard install"
    yield "demo part", "demo partition"
    yield "help wat", "help watch"
    for verb in ("who", "watch", "break", "hold", "run"):
        yield f"{verb} nig", f"{verb} nightly"
    yield "who order:4", "who order:42"
    yield f"who -u file:{folder}/other els", f"who -u file:{folder}/other elsewhere"
    yield f"who --url=file:{folder}/other els", f"who --url=file:{folder}/other elsewhere"
    yield "who -u redis+s", "who -u redis+sentinel:"
    yield "hold --log=j", "hold --log=json"
    if name != "fish":  # which asks for what comes behind a colon in its own way
        yield f"who -u file:{folder}/oth", f"who -u file:{folder}/other"
        yield f"run nightly ls {folder}/oth", f"run nightly ls {folder}/other"
        yield f"run --metrics-dir {folder}/oth", f"run --metrics-dir {folder}/other"
    yield "who $", "who $"  # a lock whose name is a command


def prepare(folder):
    """Two directories of locks, each held, and a pawl that shows its words."""
    os.environ.update(PAWL_URL=f"file:{folder}/locks", PAWL_CONFIG="/dev/null", TERM="dumb", HOME=folder, PATH=f"{folder}/bin:{os.environ['PATH']}")
    os.mkdir(f"{folder}/bin")
    with open(f"{folder}/bin/pawl", "w", encoding="utf-8") as file:
        file.write(f'#!/bin/bash\n[ "$1 $2" != "ls -w" ] || exec "{PAWL}" "$@"\nIFS=" "; printf "[[%s]]\\n" "$*"\n')
    os.chmod(f"{folder}/bin/pawl", 0o755)
    held = []
    for where, names in {"locks": ("nightly", "order:42", "$(touch${IFS}taken)"), "other": ("elsewhere",)}.items():
        os.mkdir(f"{folder}/{where}", 0o700)
        held += [subprocess.check_output([PAWL, "hold", "-d", "-u", f"file:{folder}/{where}", one], text=True).strip() for one in names]
    return held


def main():
    name = sys.argv[1]
    if not shutil.which(name):
        print(f"1..0 # SKIP no {name} here")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        held = prepare(folder)
        try:
            rows = list(cases(folder, name))
            print(f"1..{len(rows) + 1}")
            shell = (Fish if name == "fish" else Shell)(name, folder)
            bad = 0
            for number, (typed, wanted) in enumerate(rows, 1):
                got = shell.completed(f"pawl {typed}")
                bad += got != [wanted]
                print(f"{'ok' if got == [wanted] else 'not ok'} {number} - {name}: pawl {typed.replace(folder, '')}<TAB>", flush=True)
                if got != [wanted]:
                    print(f"# wanted {wanted}, got {got}")
            shell.end()
            safe = not os.path.exists(f"{folder}/taken")
            bad += not safe
            print(f"{'ok' if safe else 'not ok'} {len(rows) + 1} - {name}: the name of a lock is never run")
            return 1 if bad else 0
        finally:
            for handle in held:
                subprocess.run([PAWL, "release", handle], check=False)


sys.exit(main())
