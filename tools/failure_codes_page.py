"""``python -m tools.failure_codes_page``: writes docs/failure-codes.md from the table in the code."""

from __future__ import annotations

import sys
from pathlib import Path

from blobsync.base.errors import FailureCode

PAGE = Path(__file__).parents[1] / "docs" / "failure-codes.md"

_TOP = """# Failure codes

<!-- Made by `python -m tools.failure_codes_page` from blobsync/base/errors.py. -->

Each entry of `errors` in `--json` has one of these as its `code`, and so have the failures in receipts and
`FileFailure.code` in Python. They are part of the interface: scripts can compare them, and a change of one is in the
[changelog](../CHANGELOG.md).

The exit code is that of a command that ends with this error. A transfer of many files goes on after a file that failed,
and ends with 3 when some files arrived and some did not, 1 when none did.

The last column says what a transfer does by itself about a file that failed so. For all others: fix the cause, and run
the same command again. Verified files are skipped.

| code | meaning | exit code | tried again |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = (f"| `{code}` | {code.sentence} | {int(code.exit_code)} | {code.retry.value} |" for code in FailureCode)
    return _TOP + "\n".join(rows) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
