"""``python -m blobsync.jobs.node``, as jobs on this machine call it that an earlier version submitted.

Such a job may still wait for its GPUs, or start further processes; it gets ``blobsync.node``.
"""

import sys

from blobsync.node.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
