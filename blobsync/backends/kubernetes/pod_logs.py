"""Fetches logs of pods in pieces and splits them into the node's log files.

A pod's log has no offsets: it is requested from the second of the last known line. Each line of the node has its
position, so that known lines are skipped and gaps are noticed: a kubelet returns only the newest file of a log, and
begins another one after 10 MiB.
https://kubernetes.io/docs/concepts/cluster-administration/logging/#log-rotation,
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ (read log)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field

from blobsync.backends.kubernetes.replies import Pod
from blobsync.base.records import dataclass
from blobsync.jobspec.log_frames import FIRST_LINE, unframed

_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) (.*)", re.DOTALL)


@dataclass
class KnownBytes:
    """The known part of one log of the node: the bytes from ``begins`` on, without a gap."""

    begins: int = 0
    body: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        """The position of the next byte."""
        return self.begins + len(self.body)

    def add(self, at: int, data: bytes) -> None:
        """Add ``data`` at byte ``at``. Bytes before a gap are dropped: the copies in the container have them."""
        if at > self.end:
            self.begins, self.body = at, bytearray(data)
        elif at + len(data) > self.end:
            self.body += data[self.end - at :]

    def read(self, start: int, end: int | None) -> bytes:
        """Bytes ``start`` to ``end`` of the log; ``start`` is not before ``begins``."""
        return bytes(self.body[start - self.begins : None if end is None else max(0, end - self.begins)])


class PodLog:
    """One pod's log, as far as this process has read it: the files in it, and its end."""

    def __init__(self, read: Callable[[str, str], str]) -> None:
        """``read`` returns the log of a pod with time stamps, from a time on (empty: all of it)."""
        self._read = read
        self._known: dict[str, KnownBytes] = {}
        # Lines without a frame: of the shell, or of an interpreter that did not start.
        self._others = KnownBytes()
        self._last = self._since = ""
        # How many lines have the stamp ``_last``.
        self._equal = 0

    def update(self, pod: Pod) -> Mapping[str, KnownBytes]:
        """Read on; returns the files in it. Raises what ``read`` raises."""
        lines = self._read(pod.name, self._since).split("\n")
        if not pod.is_over:
            # A line without its end is still being written.
            lines.pop()
        skip, last = self._equal, self._last
        for line in lines:
            match = _STAMPED.fullmatch(line)
            if not match:
                continue
            stamp, content = f"{match[1]}{(match[2] or '.0').ljust(10, '0')[:10]}", match[4]
            is_new = stamp > last
            if stamp == last:
                is_new, skip = not skip, max(0, skip - 1)
            if is_new:
                self._equal = self._equal + 1 if stamp == self._last else 1
                self._last, self._since = stamp, f"{match[1]}{match[3]}"
            if found := unframed(content):
                name, at, body = found
                self._known.setdefault(name, KnownBytes()).add(at, body)
            elif is_new and not FIRST_LINE.fullmatch(content):
                self._others.add(self._others.end, content.encode() + b"\n")
        return self._files(pod)

    def _files(self, pod: Pod) -> Mapping[str, KnownBytes]:
        """The logs by name; without the unframed lines if some of them may be lost."""
        found = dict(self._known)
        if self._others.body and not any(one.begins for one in found.values()):
            found[f"pod_{pod.index}"] = self._others
        attempt = f"attempt_{pod.attempt}/" if pod.attempt else ""
        task = "" if pod.task is None else f"task_{pod.task}/"
        return {
            f"{task}{attempt}{'user_logs' if name.startswith('std_log') else 'system_logs'}/{name}.txt": one
            for name, one in found.items()
        }
