"""Debug messages go to whoever listens, and load nothing for nobody."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from blobsync.base.events import debug_logger


def test_who_logs_at_debug_gets_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "blobsync.http"):
        log = debug_logger("blobsync.http")
        assert log is not None
        log.debug("GET: %d", 200)
    assert caplog.messages == ["GET: 200"]


def test_who_logs_less_gets_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "blobsync.http"):
        assert debug_logger("blobsync.http") is None


def test_logging_is_not_loaded_for_nobody() -> None:
    code = "import sys; from blobsync.base.events import debug_logger as log; print(log('a'), 'logging' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["None", "False"]


_IMPORTED_BY_ANOTHER = """
import sys, threading, time
from blobsync.base.events import debug_logger

for name in ("logging", "string"):
    sys.modules.pop(name, None)
begun, looked = threading.Event(), threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "string":
            begun.set()
            looked.wait(60)
            time.sleep(0.3)

sys.meta_path.insert(0, Slow())
threading.Thread(target=__import__, args=("logging",)).start()
found = [begun.wait(60), hasattr(sys.modules["logging"], "getLogger")]
looked.set()
print(*found, debug_logger("a"))
"""


def test_a_thread_waits_while_another_one_imports_logging() -> None:
    ended = subprocess.run([sys.executable, "-c", _IMPORTED_BY_ANOTHER], capture_output=True, text=True, check=False)
    assert (ended.stdout.split(), ended.stderr) == (["True", "False", "None"], "")
