"""What a form exports is the command line that asks for the same."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import pytest

from blobsync.jobs.form.filled import JobForm, check_form
from blobsync.project.api import Project
from tests.cli.conftest import Cli

FORMS: tuple[Mapping[str, str], ...] = (
    {"command": "python train.py --lr 0.1"},
    {"command": 'for i in 1 2; do echo "$i"; done', "num_gpu": "0"},
    {
        "command": "python 'a b.py'",
        "name": "it's one",
        "num_gpu": "2",
        "single": "yes",
        "env": "A=two words\nB=c=d",
        "setup": "pip install x\nmake",
        "folder_mode:data": "download",
        "folder_parts:data": "coco; voc/2012",
        "other": "{runtime: {keep_root: always}}",
    },
)


@pytest.mark.parametrize("values", FORMS)
def test_the_exported_command_line_with_dry_run_gives_the_same_request(cli: Cli, values: Mapping[str, str]) -> None:
    text = (cli.root / "aux_data/aml/aml.yaml").read_text()
    cli.write("aux_data/aml/here.yaml", f"platform: local\n{text}")
    found = check_form(cli.root, JobForm("here", values), os.environ).asked
    assert found
    words = list(found.command_line[1:])
    place = words.index("submit") + 1
    printed = cli(*words[:place], "--dry-run", *words[place:])
    assert printed.code == 0, printed.err
    with Project.open(cli.root, cluster="here", overrides=found.overrides) as project:
        planned = project.jobs.plan(found.argv, **found.keywords)
    assert _without_id(printed.out) == _without_id(planned.shown + "\n")


def _without_id(text: str) -> str:
    return re.sub(r"[a-z0-9-]+_[0-9]{9,11}_[0-9a-f]{8}", "ID", text)
