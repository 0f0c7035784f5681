"""embed.py FILE.sql: prints it as a C array of characters."""
import sys

print("extern const char pawl_sql[];\nconst char pawl_sql[] = {")
for line in open(sys.argv[1], "rb"):
    print("    " + " ".join("%d," % c for c in line))
print("    0};")
