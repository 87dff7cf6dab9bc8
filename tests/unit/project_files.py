"""Writes small projects for the configuration tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

ACCOUNT = """\
account_name: acct
container_name: cont
account_key: a2V5
"""


class ProjectFiles:
    """A project folder with ``aux_data/configs/acct.yaml`` ready."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.account("acct", ACCOUNT)

    def cluster(self, text: str, name: str = "aml") -> Path:
        """Write ``aux_data/aml/<name>.yaml``."""
        return self.write(f"aux_data/aml/{name}.yaml", dedent(text))

    def account(self, name: str, text: str) -> Path:
        """Write ``aux_data/configs/<name>.yaml``, readable for the owner alone."""
        path = self.write(f"aux_data/configs/{name}.yaml", dedent(text))
        path.chmod(0o600)
        return path

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


NO_ENVIRON: Mapping[str, str] = {}
