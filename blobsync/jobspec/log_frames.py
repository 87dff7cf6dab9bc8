"""The format of a node's log lines in the log of its pod. Pure.

blobsync node 0, attempt 0                     the first line
[std_log_process_3 1048576] a line of that file, and the byte at which it begins
[std_log_process_3= 1048592] ...               base64 of bytes that are not a whole line of UTF-8
[node_0 0] a line of the node's own log

A kubelet deletes the older parts of a long log: the positions show what is missing.
"""

from __future__ import annotations

import base64
import re

# The variable with the file for the last line of a task, framed like the others.
LAST_LINE_VARIABLE = "BLOBSYNC_LAST_LINE"

FIRST_LINE = re.compile(r"blobsync node [0-9]{1,6}, attempt [0-9]{1,6}")
LINE = re.compile(r"\[(std_log(?:_process_[0-9]{1,7})?|node_[0-9]{1,6})(=?) ([0-9]{1,15})\] (.*)", re.DOTALL)


def framed(name: str, at: int, line: bytes) -> bytes:
    """Frame a line of the log ``name`` that begins at byte ``at``."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        text = ""
    if text.endswith("\n"):
        return f"[{name} {at}] ".encode() + line
    return f"[{name}= {at}] ".encode() + base64.b64encode(line) + b"\n"


def unframed(line: str) -> tuple[str, int, bytes] | None:
    """The log's name, position and bytes of a framed line (without its line end); None for any other line."""
    match = LINE.fullmatch(line)
    if not match:
        return None
    if not match[2]:
        return match[1], int(match[3]), match[4].encode() + b"\n"
    try:
        return match[1], int(match[3]), base64.b64decode(match[4], validate=True)
    except ValueError:
        return None
