"""The how-to pages: their commands, run as they stand there, do what the pages say."""

from __future__ import annotations

import re
import shlex

import pytest
from azure.storage.blob import BlobBlock

from tests.e2e.world import Container, Project, hashes, write_tree
from tests.source import ROOT

pytestmark = pytest.mark.e2e

_FILES = {"voc20/labels.txt": b"cat", "voc20/1.bin": b"1" * 300}


def _commands(page: str) -> list[list[str]]:
    """The words of each blobsync command in the page's blocks."""
    text = (ROOT / "docs/how-to" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```|^((?: {4}.*\n)+)", text, re.MULTILINE | re.DOTALL)
    lines = "\n".join("".join(block) for block in blocks)
    return [shlex.split(line, comments=True) for line in re.findall(r"^ *blobsync (.*)$", lines, re.MULTILINE)]


def test_a_deleted_blob_comes_back_and_doctor_speaks_of_recovery(project: Project, container: Container) -> None:
    project.configure(container)
    write_tree(project.data, _FILES)
    assert project.run("u", "data").code == 0
    container.blob("data/voc20/labels.txt").delete_blob()
    verify, upload, download = (words for words in _commands("../undo") if words[0] in ("verify", "u", "d"))
    shown = project.run(*verify)
    assert (shown.code, shown.out.splitlines()[0]) == (3, "local only: data/voc20/labels.txt"), str(shown)
    assert project.run(*upload).out.startswith("uploaded 1 file, 3 B")
    assert "recovery: " in project.run("doctor").out
    assert project.run(*download).code == 0
    assert container.contents("data/") == hashes(_FILES)


def test_links_are_made_for_a_file_and_for_each_of_a_folder_and_a_limit_of_speed_is_taken(
    project: Project, container: Container
) -> None:
    project.configure(container)
    write_tree(project.data, _FILES)
    assert [project.run(*words).code for words in _commands("limit-bandwidth")] == [0, 0]
    one, each = (project.run(*words) for words in _commands("share-a-folder"))
    assert (one.code, one.out.count("labels.txt?"), each.code, each.out.count("?sp=r&")) == (0, 1, 0, 2)


def test_what_azcopy_uploaded_without_an_md5_is_unknown_until_it_is_read_once(
    project: Project, container: Container
) -> None:
    project.configure(container)
    write_tree(project.data, _FILES)
    blob = container.blob("data/voc20/1.bin")
    # In blocks, as large files go: the service makes an MD5 only of what arrives in one request.
    blob.stage_block("MQ==", _FILES["voc20/1.bin"])
    blob.commit_block_list([BlobBlock("MQ==")])
    _, verify, upload = _commands("from-azcopy")
    assert "unknown: data/voc20/1.bin" in project.run(*verify).out
    assert (project.run(*upload).code, project.run(*verify).out[:7]) == (0, "2 equal")
