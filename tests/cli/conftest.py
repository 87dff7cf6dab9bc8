"""Runs the command line in this process, in a small project whose blob server does not answer."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blobsync.cli.main import main
from tests.documents import check_output

ACCOUNT = """\
account_name: acct
container_name: cont
account_key: U0VOVElORUw=
blob_endpoint: http://127.0.0.1:9/acct
"""
CLUSTER = """\
config_param:
  data_folder: {azure_blob_config_file: aux_data/configs/acct.yaml, path: p/data}
  output_folder: {azure_blob_config_file: aux_data/configs/acct.yaml, path: p/output}
"""
# The base64 text above: must never be seen in any output.
SENTINEL = "U0VOVElORUw"


@dataclass(frozen=True)
class Ended:
    """How one command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document; anything before or after it is a mistake."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class Cli:
    """A project folder to run commands in."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys
        self.write("aux_data/configs/acct.yaml", ACCOUNT).chmod(0o600)
        self.write("aux_data/aml/aml.yaml", CLUSTER)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def __call__(self, *words: str) -> Ended:
        self._capsys.readouterr()
        code = main(words)
        out, err = self._capsys.readouterr()
        assert SENTINEL not in out + err
        assert "Traceback" not in out + err
        check_output(out)
        return Ended(code, out, err)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield Cli(tmp_path, capsys)
    signal.signal(signal.SIGTERM, before)
