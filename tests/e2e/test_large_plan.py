"""A plan of more files than memory is to hold: the installed program, within a limit that a plan in memory breaks."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.world import blobsync_command
from tests.servers.listing_server import listing_server, name_of
from tests.source import ROOT

FILES = 200_000
# In memory they take 255 MB, on the disk 171: 40 for the program, and 100 for the pages of the listings under way.
MOST_MB = 215.0


def planned(folder: Path, url: str, *words: str, large: int | None) -> tuple[dict[str, object], float]:
    """The document that ``plan`` prints, and the peak of its memory in MB."""
    folder.mkdir(exist_ok=True)
    (folder / "data").mkdir(exist_ok=True)
    key = base64.b64encode(b"any").decode()
    account = f"account_name: acct\ncontainer_name: data\naccount_key: {key}\nblob_endpoint: {url}/acct\n"
    for name, text in (
        ("configs/acct.yaml", account),
        ("aml/aml.yaml", "azure_blob_config_file: aux_data/configs/acct.yaml\nconfig_param:\n  data_folder: base\n"),
    ):
        file = folder / "aux_data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o600)
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "BLOBSYNC_TRANSPORT": "urllib3"}
    if large is not None:
        environ["BLOBSYNC_LARGE_PLAN"] = str(large)
    log = folder.parent / "output"
    log.unlink(missing_ok=True)
    # From a small process: a child begins with the peak of the one that it comes from.
    timed = [sys.executable, "-I", "-S", str(ROOT / "benchmarks" / "timed.py"), str(log)]
    argv = [*timed, blobsync_command(), "--json", "plan", *words, "data/tree"]
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert measured["exit_code"] == 0, log.read_text()[-2000:]
    document: dict[str, object] = json.loads(log.read_text())["data"]
    return document, measured["peak_mb"]


@pytest.mark.soak
def test_a_large_plan_takes_no_more_memory_than_a_batch_of_it_and_has_its_files_in_a_file(tmp_path: Path) -> None:
    with listing_server(FILES) as url:
        data, peak = planned(tmp_path / "project", url, "d", large=20_000)
    print(f"{FILES:,} files: {peak:.0f} MB")
    assert peak < MOST_MB
    assert (data["planned"], data["bytes_planned"]) == (FILES, 0) and "actions" not in data
    lines = Path(str(data["actions_file"])).read_text().splitlines()
    record = {"action": "download", "reason": "not at the destination yet", "size": 0}
    assert len(lines) == FILES
    for number in (0, 1, FILES // 2, FILES - 1):
        # The stand-in's names are in the order of their numbers.
        found = json.loads(lines[number])
        assert found | record == found and found["path"] == f"data/tree/{name_of(number)}"
    assert not list((tmp_path / "project").rglob("blobsync-plan-*"))
