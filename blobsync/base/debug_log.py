"""Debug messages for whoever uses Python's ``logging``, which takes a thirtieth of a short command to import."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def debug_logger(name: str) -> Logger | None:
    """The logger ``name`` if its debug messages go anywhere. While nobody has imported ``logging``, none do."""
    logging = sys.modules.get("logging")
    if logging is None:
        return None
    logger: Logger = logging.getLogger(name)
    return logger if logger.isEnabledFor(logging.DEBUG) else None
