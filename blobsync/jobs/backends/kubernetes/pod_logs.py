"""The logs of pods, fetched bit by bit and taken apart into the logs that the node wrote.

A pod's log has no offsets: it is asked for from the second of the last known line on, and the lines that are known
already are left out. https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ (read log)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from blobsync.base.errors import JobError
from blobsync.jobs.backends.kubernetes.replies import Pod
from blobsync.jobs.node.echo import FIRST_LINE, unframed

_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) (.*)", re.DOTALL)


@dataclass
class PodLog:
    """What is known of one pod's log: the files in it, and where it ends."""

    files: dict[str, bytearray] = field(default_factory=dict)
    lines: int = 0
    last: str = ""
    since: str = ""
    # How many lines have the stamp ``last``.
    equal: int = 0

    def add(self, pod: Pod, text: str) -> None:
        """One line of it. Raises ``JobError`` for the first one if there were others before."""
        if not self.lines and unframed(text):
            # The kubelet throws the beginning of a long log away; then what follows would get to wrong places.
            raise JobError(
                f"the cluster no longer has the beginning of the log of {pod.name}",
                hint="the copies in the container are whole",
            )
        self.lines += 1
        found = unframed(text)
        if found:
            name, body = found
        elif FIRST_LINE.fullmatch(text):
            return
        else:
            name, body = f"pod_{pod.index}", text.encode() + b"\n"
        folder = "user_logs" if name.startswith("std_log") else "system_logs"
        attempt = f"attempt_{pod.attempt}/" if pod.attempt else ""
        self.files.setdefault(f"{attempt}{folder}/{name}.txt", bytearray()).extend(body)


class PodLogs:
    """The logs of pods of one namespace, as far as this process has read them."""

    def __init__(self, read: Callable[[str, str], str]) -> None:
        """``read`` returns the log of a pod with time stamps, from a time on (empty: all of it)."""
        self._read = read
        self._known: dict[str, PodLog] = {}

    def update(self, pod: Pod) -> PodLog:
        """Bring one pod's log up to date. Raises what ``read`` raises."""
        known = self._known.setdefault(pod.name, PodLog())
        text = self._read(pod.name, known.since)
        skip, last = known.equal, known.last
        for line in text.split("\n"):
            match = _STAMPED.fullmatch(line)
            if not match:
                continue
            stamp, content = f"{match[1]}{(match[2] or '.0').ljust(10, '0')[:10]}", match[4]
            if stamp < last:
                continue
            if stamp == last and skip:
                skip -= 1
                continue
            known.equal = known.equal + 1 if stamp == known.last else 1
            known.last, known.since = stamp, f"{match[1]}{match[3]}"
            known.add(pod, content)
        return known
