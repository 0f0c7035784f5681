"""embed.py OUT FILE.lua...: writes the scripts into a C file with their SHA-1, as script.h declares them. A line
"--@include FILE" is replaced by that file; comments and indentation are left out. The place of a script among them is its
bit in what a connection knows."""
import hashlib
import os
import re
import sys


def lines(path):
    for line in open(path, encoding="ascii"):
        line = line.strip()
        if line.startswith("--@include "):
            yield from lines(os.path.join(os.path.dirname(path), line.split()[1]))
        elif line and not line.startswith("--"):
            yield re.sub(r"\s+-- .*$", "", line)


with open(sys.argv[1], "w", encoding="ascii") as out:
    out.write('#include "script.h"\n#pragma GCC diagnostic ignored "-Woverlength-strings"\n') # ISO C asks for 4095 only
    for bit, path in enumerate(sys.argv[2:]):
        name = os.path.splitext(os.path.basename(path))[0]
        text = "\n".join(lines(path))
        quoted = "\n    ".join('"%s\\n"' % t.replace("\\", "\\\\").replace('"', '\\"') for t in text.split("\n"))
        sha = hashlib.sha1((text + "\n").encode()).hexdigest()
        out.write('const struct script script_%s = {\n    "%s", %du,\n    %s};\n' % (name, sha, 1 << bit, quoted))
