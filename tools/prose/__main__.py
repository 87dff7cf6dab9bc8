"""Prints every problem as ``page:line: what``; the exit code is 1 where there is one."""

from __future__ import annotations

import sys

from tools.prose.rules import problems
from tools.prose.texts import texts


def main() -> int:
    """Check all texts."""
    found = [f"{name}:{problem.line}: {problem.what}" for name, text in texts() for problem in problems(text)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
