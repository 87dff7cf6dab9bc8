"""``python -m tools.failure_codes_page``: writes docs/failure-codes.md from the table in the code."""

from __future__ import annotations

import sys
from pathlib import Path

from blobsync.base.errors import FailureCode, Retry

PAGE = Path(__file__).parents[1] / "docs" / "failure-codes.md"

_TOP = """# Failure codes

<!-- Made by `python -m tools.failure_codes_page` from blobsync/base/errors.py. -->

The `code` of an entry of `errors` in `--json`, of a failure in a receipt, and of `FileFailure` in Python. Scripts can
compare them; a change of one is in the [changelog](../CHANGELOG.md).

Each stands below the exit code of a command that ends with it. A transfer goes on after a file that failed, and ends
with 3 when some files arrived, 1 when none did. What it does by itself about such a file is in brackets; for all
others, fix the cause and run the same command again.
"""


def page() -> str:
    """The whole page."""
    return _TOP + "".join(
        f"\n## Exit code {int(exit_code)}\n\n"
        + "".join(_line(code) for code in FailureCode if code.exit_code is exit_code)
        for exit_code in dict.fromkeys(sorted(code.exit_code for code in FailureCode))
    )


def _line(code: FailureCode) -> str:
    again = "" if code.retry is Retry.NONE else f" ({code.retry.value})"
    return f"* `{code}`: {code.sentence}{again}\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
