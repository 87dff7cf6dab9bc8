"""``python -m blobsync`` is the command ``blobsync``."""

from __future__ import annotations

import sys

from blobsync.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
