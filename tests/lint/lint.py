#!/usr/bin/python3
"""lint.py [--root DIR]: rules of the house that no compiler knows. Speaks TAP, one line a rule.
lint.py --self-test: plants a violation of each rule in a scratch tree and expects that very rule to fail.

A rule is a function that yields "file:line: what is wrong". EXCEPTIONS names what may break a rule, and why.
"""
import os
import re
import subprocess
import sys
import tempfile

EXCEPTIONS = {
    # (rule, file): why
    ("clocks", "src/clock.c"): "the one place that reads a clock",
    ("clocks", "lab/skew.c"): "it is a clock: what a server with a wrong one sees",
    ("clocks", "lab/peer_worker.c"): "the contract of the peer bench counts in CLOCK_MONOTONIC",
    ("clocks", "src/session.c"): "a condition variable knows no CLOCK_BOOTTIME: naps of a second, the deadline is looked at after each",
    ("headers_stand_alone", "src/etcd/etcd.h"): "includes what protoc-c makes in the build folder",
    ("headers_stand_alone", "src/etcd/ask.h"): "the same",
    ("no_sleeps_in_tests", "tests/system/run/run_worker.c"): "the pace of a load; nothing is decided by it",
}
CODE = ("include", "src", "cli", "lab")
ALL = CODE + ("tests",)
FILE_LINES, FUNCTION_LINES = 500, 60


def files(root, folders, endings):
    for folder in folders:
        for at, folder_names, names in os.walk(os.path.join(root, folder)):
            folder_names.sort()
            for name in sorted(names):
                if name.endswith(endings):
                    yield os.path.relpath(os.path.join(at, name), root)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def code_only(text):
    """Comments and the insides of strings blanked, lines kept."""
    def blank(match):
        found = match.group(0)
        if found[0] in "\"'":
            return found[0] + " " * (len(found) - 2) + found[0]
        return re.sub(r"[^\n]", " ", found)
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def grep(root, rule, folders, pattern, why, endings=(".c", ".h")):
    for path in files(root, folders, endings):
        if (rule, path) in EXCEPTIONS:
            continue
        text = read(root, path)
        text = code_only(text) if endings == (".c", ".h") else text
        for number, line in enumerate(text.splitlines(), 1):
            match = re.search(pattern, line)
            if match:
                yield f"{path}:{number}: {match.group(0).strip()}: {why}"


def clocks(root):
    """wall clocks stay out of deadlines: clocks are read in src/clock.c only"""
    yield from grep(root, "clocks", CODE,
                    r"\b(CLOCK_REALTIME\w*|gettimeofday|clock_gettime|pthread_cond_(timed|clock)wait|sem_timedwait|ftime"
                    r"|(?<![\w.>])time\s*\(\s*(NULL|0|&))",
                    "take clock_now_ns, or clock_wall_us for people and tokens")
    yield from grep(root, "clocks", ALL, r"\bCLOCK_MONOTONIC\w*", "does not count suspends: CLOCK_BOOTTIME")


def silent_library(root):
    """the library prints nothing, reads no environment, installs no handler, never exits or sleeps"""
    yield from grep(root, "silent_library", ("src", "include"),
                    r"(?<![\w.>])(printf|vprintf|fprintf(?!\(file,)|vfprintf|dprintf|puts|fputs(?!\([^;]*, file\))"
                    r"|putchar|perror|getenv|secure_getenv|setenv|exit|_exit|abort|system|popen|signal|sigaction|sleep|usleep|nanosleep|syslog)\s*\(",
                    "not in src/, but to a FILE *file that is given")


def short_files(root):
    """no file over 500 lines"""
    for path in files(root, ALL, (".c", ".h", ".py", ".sh", ".bats", ".lua", ".sql")):
        count = read(root, path).count("\n")
        if count > FILE_LINES and ("short_files", path) not in EXCEPTIONS:
            yield f"{path}:{count}: {count} lines, {FILE_LINES} allowed"


def short_functions(root):
    """no function over 60 lines"""
    for path in files(root, ALL, (".c",)):
        start = 0
        for number, line in enumerate(code_only(read(root, path)).splitlines(), 1):
            if re.match(r"[A-Za-z_](?!\w*:)", line):
                start = number  # the last line that begins at the margin and is no label
            if line == "}" and number - start + 1 > FUNCTION_LINES and ("short_functions", path) not in EXCEPTIONS:
                yield f"{path}:{start}: a function of {number - start + 1} lines, {FUNCTION_LINES} allowed"


def no_sleeps_in_tests(root):
    """tests wait for events, or ask for a condition until a deadline; they do not sleep"""
    yield from grep(root, "no_sleeps_in_tests", ("tests",), r"(?<![\w.>])(sleep|usleep|nanosleep|clock_nanosleep)\s*\(",
                    "wait for an event")
    yield from grep(root, "no_sleeps_in_tests", ("tests",), r"^\s*sleep\s+([1-9]|0?\.[1-9])", "wait for an event",
                    (".bats", ".bash"))


def headers_stand_alone(root):
    """each header compiles by itself; pawl.h as C++ too"""
    include = [f"-I{os.path.join(root, folder)}" for folder in ("include", "src", "cli", "lab", "tests/lib")]
    libpq = subprocess.run(["pkg-config", "--cflags", "libpq"], capture_output=True, text=True)
    include += libpq.stdout.split()
    compilers = (("cc", "c", "-std=gnu11", ALL), ("g++", "c++", "-std=c++11", ("include",)))
    for compiler, language, standard, folders in compilers:
        for path in files(root, folders, (".h",)):
            if ("headers_stand_alone", path) in EXCEPTIONS:
                continue
            done = subprocess.run([compiler, "-x", language, standard, "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
                                   "-Wno-unused-function", "-fsyntax-only", *include, "-include", os.path.join(root, path), "/dev/null"],
                                  capture_output=True, text=True)
            if done.returncode:
                yield f"{path}: not by itself as {language}: {(done.stderr.strip() or '?').splitlines()[0]}"


def nothing_unfinished(root):
    """no marks of unfinished work"""
    yield from grep(root, "nothing_unfinished", ALL + ("docs", "man", "tools", "examples"), r"\b(TODO|FIXME|XXX|HACK)\b", "finish it, or say so in the docs",
                    (".c", ".h", ".sh", ".md", ".bats", ".lua", ".sql", ".build", ".1", ".3", ".7"))


def links_lead_somewhere(root):
    """every relative link in the documents leads to a file, and every anchor to a heading"""
    documents = [name for name in sorted(os.listdir(root)) if name.endswith(".md")]
    documents += list(files(root, ("docs", "models", "examples"), (".md",)))
    for path in documents:
        text = re.sub(r"```.*?```", "", read(root, path), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            full = os.path.normpath(os.path.join(root, os.path.dirname(path), name)) if name else os.path.join(root, path)
            if not os.path.exists(full):
                yield f"{path}: link to {target}: no such file"
            elif anchor and full.endswith(".md"):
                headings = re.findall(r"^#+ (.*)$", read("", full), flags=re.M)
                made = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
                if anchor not in made:
                    yield f"{path}: link to {target}: no such heading"


def named_tests_exist(root):
    """a test that a document names is in the file that it links to"""
    for path in files(root, ("docs",), (".md",)):
        for name, target in re.findall(r"\[`([^`/]+)`\]\(([^)]*tests/[^)]+)\)", read(root, path)):
            full = os.path.normpath(os.path.join(root, os.path.dirname(path), target))
            if not os.path.isfile(full) or not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", read("", full)):
                yield f"{path}: {name} is not in {target}"


def rows_name_a_test(root):
    """each requirement and each case names a test, or says that it is not built"""
    for path in ("docs/REQUIREMENTS.md", "docs/CASES.md"):
        if not os.path.exists(os.path.join(root, path)):
            continue
        for number, line in enumerate(read(root, path).splitlines(), 1):
            row = re.match(r"\| ([SB]\d+) \|", line)
            if row and not re.search(r"\[`[^`]+`\]\([^)]*tests/|\| not built: ", line):
                yield f"{path}:{number}: {row.group(1)} names no test"


def every_test_is_registered(root):
    """every test file is named in the meson.build of its folder"""
    for path in files(root, ("tests",), (".bats", ".c")):
        folder, name = os.path.split(path)
        if folder == "tests/lib":
            continue
        build = read(root, f"{folder}/meson.build") if os.path.exists(os.path.join(root, folder, "meson.build")) else ""
        stem = name.rsplit(".", 1)[0]
        if not re.search(rf"'([^']*/)?({re.escape(name)}|{re.escape(stem)}|{re.escape(re.sub('^(test|fuzz)_', '', stem))})'", build):
            other = os.path.dirname(folder)
            above = read(root, f"{other}/meson.build") if os.path.exists(os.path.join(root, other, "meson.build")) else ""
            if f"{os.path.basename(folder)}/{name}" not in above:
                yield f"{path}: not in {folder}/meson.build"


def told(text, name):
    """The statements of C that tell this finding: from one semicolon to the next."""
    return [text[text.rfind(";", 0, at.start()) + 1:text.find(";", at.start())] for at in re.finditer(f'"{name}"[,;]', text)]


def findings_are_planted(root):
    """each finding of pawl doctor that can be a warning or unsafe is planted by a test, and no test plants another"""
    code = {path: read(root, path) for path in files(root, ("src", "cli"), ("doctor.c",))}
    tests = "".join(read(root, path) for path in files(root, ("tests/cli", "tests/system"), (".bats", ".c")) if "doctor" in path)
    planted = set(re.findall(r"\b([A-Z]\d\d) (?:warning|unsafe)\b", tests))
    known = set()
    for path, text in code.items():
        for name in sorted(set(re.findall(r'"([A-Z]\d\d)"', text))):
            known.add(name)
            judged = told(text, name)
            only_tells = judged and not any(re.search(r"WARNING|UNSAFE|level", one) for one in judged)
            if name not in planted and not only_tells:
                yield f"{path}: {name} is planted by no test"
    for name in sorted(planted - known):
        yield f"tests plant {name}, which doctor does not tell"


RULES = (clocks, silent_library, short_files, short_functions, no_sleeps_in_tests, headers_stand_alone, nothing_unfinished,
         links_lead_somewhere, named_tests_exist, rows_name_a_test, every_test_is_registered, findings_are_planted)

PLANTED = (  # rule, file, text
    (clocks, "src/a.c", "int64_t f(void) { return time(NULL); }\n"),
    (clocks, "src/a.c", "    clock_gettime(CLOCK_REALTIME, &t);\n"),
    (clocks, "tests/a.c", "    clock_gettime(CLOCK_MONOTONIC_RAW, &t);\n"),
    (clocks, "cli/a.c", "    gettimeofday(&t, NULL);\n"),
    (silent_library, "src/x/a.c", '    fprintf(stderr, "x");\n'),
    (silent_library, "src/a.c", 'const char *f(void) { return getenv("HOME"); }\n'),
    (silent_library, "src/a.c", "    signal(SIGPIPE, SIG_IGN);\n"),
    (short_files, "cli/a.c", "int x;\n" * 501),
    (short_functions, "lab/a.c", "int f(void) {\n" + "    g();\n" * 59 + "}\n"),
    (short_functions, "lab/a.c", "int f(void) {\nout:\n" + "    g();\n" * 58 + "}\n"),
    (short_functions, "lab/a.c", "int f(int a,\n      int b) {\n" + "    g();\n" * 59 + "}\n"),
    (no_sleeps_in_tests, "tests/a.c", "    usleep(1000);\n"),
    (no_sleeps_in_tests, "tests/a.bats", "    sleep 1\n"),
    (headers_stand_alone, "src/a.h", "int64_t f(void);\n"),
    (headers_stand_alone, "include/a.h", "struct a { int class; };\nint f(struct a *new);\n"),
    (nothing_unfinished, "src/a.c", "/* TODO: the rest */\n"),
    (links_lead_somewhere, "docs/a.md", "see [b](b.md)\n"),
    (links_lead_somewhere, "docs/a.md", "# one\nsee [b](#two)\n"),
    (every_test_is_registered, "tests/cli/a.bats", "@test x {\n}\n"),
    (findings_are_planted, "src/x/doctor.c", '    tell(l, "E99", bad(old, PAWL_LEVEL_WARNING), "version", seen, "", "");\n'),
    (findings_are_planted, "src/doctor.c", '    pawl_finding f = {sizeof f, PAWL_LEVEL_UNSAFE, "C99", "a", seen, "", ""};\n'),
    (findings_are_planted, "tests/cli/doctor.bats", '    planted "a fault" "E99 warning"\n'),
    (named_tests_exist, "docs/a.md", "[`nothing`](../tests/ok.bats)\n"),
    (rows_name_a_test, "docs/CASES.md", "| B01 | it breaks | [ok.bats](../tests/ok.bats) |\n"),
    (rows_name_a_test, "docs/REQUIREMENTS.md", "| S01 | it holds |  |\n"),
)
HARMLESS = {
    "src/ok.c": '/* time(NULL), getenv("x") */\nint f(void) {\n    log->printf("time(NULL)");\n    uptime(0);\n'
                '    snprintf(a, b, "printf()");\n' + "    g();\n" * 55 + "}\n",
    "src/clock.c": "    clock_gettime(CLOCK_REALTIME, &t);\n",
    "src/doctor.c": '    tell(l, "E01", PAWL_LEVEL_FINE, "version", seen, "", "");\n',
    "tests/meson.build": "files('cli/doctor.bats')\ntest('ok', bats, args: files('ok.bats'))\ntest('a', files('a.c', 'a.bats'))\n",
    "tests/ok.bats": '    pawl run n -- sleep 60 &\n',
    "docs/CASES.md": "| B01 | it breaks | [`sleep`](../tests/ok.bats) |\n| B02 | it leaks | not built: any |\n",
    "docs/ok.md": "# A heading: with `code`\n[x](#a-heading-with-code) [y](ok.md) [z](https://example.org/#q) [`sleep`](../tests/ok.bats)\n",
}


def plant(root, tree):
    for path, text in tree.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)


def self_test():
    print(f"1..{len(PLANTED) + 1}")
    bad = 0
    for number, (rule, path, text) in enumerate((*PLANTED, (None, "src/ok.h", "int f(void);\n")), 1):
        with tempfile.TemporaryDirectory() as root:
            plant(root, {**HARMLESS, path: text})
            broken = {other.__name__ for other in RULES if list(other(root))}
        wanted = {rule.__name__} if rule else set()
        good = broken == wanted
        bad += not good
        print(f"{'ok' if good else 'not ok'} {number} - {path} breaks {', '.join(wanted) or 'nothing'}")
        if not good:
            print(f"# broken: {', '.join(sorted(broken)) or 'nothing'}")
    return bad


def main():
    if "--self-test" in sys.argv:
        return 1 if self_test() else 0
    root = sys.argv[sys.argv.index("--root") + 1] if "--root" in sys.argv else "."
    print(f"1..{len(RULES)}")
    bad = 0
    for number, rule in enumerate(RULES, 1):
        found = list(rule(root))
        bad += bool(found)
        print(f"{'not ok' if found else 'ok'} {number} - {rule.__doc__}")
        for line in found:
            print(f"# {line}")
    return 1 if bad else 0


sys.exit(main())
