"""Whether a row is slower than it was: ``python -m benchmarks.earlier REVISION``.

Compares the CPU time of each row in docs/performance-results.json with that of the file at a revision of git. Machines
are faster on one day than on another, so the change of blobsync stands beside that of the same versions of other
programs: a row is slower if blobsync changed more than all of them, by more than its samples vary. Seconds do not tell:
azcopy looks every two seconds whether it is done.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.charts import RESULTS
from benchmarks.emulator import ROOT
from benchmarks.measure import Series

_OURS = "blobsync"
Rows = Mapping[str, Mapping[str, Series]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.earlier", description=__doc__)
    parser.add_argument("revision")
    revision = parser.parse_args().revision
    shown = ["git", "show", f"{revision}:{RESULTS.relative_to(ROOT).as_posix()}"]
    before = json.loads(subprocess.run(shown, cwd=ROOT, capture_output=True, check=True).stdout)
    now = json.loads(RESULTS.read_text())
    same = {name for name, version in now["versions"].items() if version == before["versions"].get(name)}
    print(f"the same version then and now: {', '.join(sorted(same))}")
    for line in _lines(_rows(before), _rows(now), same):
        print(line)


def _rows(results: Mapping[str, Any]) -> Rows:
    return {
        case["key"]: {one.tool: one for one in map(Series.from_json, case["series"]) if one.samples}
        for case in results["cases"]
    }


def _lines(before: Rows, now: Rows, same: set[str]) -> Iterator[str]:
    slower = 0
    for key, row in now.items():
        was = before.get(key, {})
        peers = sorted(same & row.keys() & was.keys() - {_OURS})
        if _OURS not in row or _OURS not in was or not peers:
            continue
        changes = {name: row[name].median("cpu") / was[name].median("cpu") for name in (_OURS, *peers)}
        # What blobsync would take if it had changed as the program that changed most.
        expected = was[_OURS].median("cpu") * max(changes[name] for name in peers)
        samples = [sample.cpu for sample in row[_OURS].samples]
        is_slower = row[_OURS].median("cpu") > expected + max(samples) - min(samples)
        slower += is_slower
        said = ", ".join(f"{name} x{change:.2f}" for name, change in changes.items())
        yield f"{key:22} {'SLOWER' if is_slower else '':7}{said}"
    yield f"{slower} rows slower"


if __name__ == "__main__":
    main()
