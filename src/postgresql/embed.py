"""embed.py OUT.sql OUT.c PART.sql...: the parts one after the other, and the same as a C array of characters."""
import sys

text = b"\n".join(open(path, "rb").read() for path in sys.argv[3:])
open(sys.argv[1], "wb").write(text)
with open(sys.argv[2], "w") as out:
    out.write("extern const char pawl_sql[];\nconst char pawl_sql[] = {\n")
    for line in text.splitlines(keepends=True):
        out.write("    " + " ".join("%d," % c for c in line) + "\n")
    out.write("    0};\n")
