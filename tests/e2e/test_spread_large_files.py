"""``--nodes`` with one large file: cut into ranges over the workers, one of which is killed, exact by SHA-256."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest
from azure.core.exceptions import ResourceNotFoundError

from tests.e2e.test_spread import nothing_is_left, workers_of
from tests.e2e.world import Container, Project, read_tree, sha256, wait_until, write_tree
from tests.servers.copy_source_proxy import copy_source_proxy

__all__ = ["nothing_is_left"]

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

# Blocks of 2 MiB, the last one of three bytes.
_BIG = random.Random(20261221).randbytes((24 << 20) + 3)
_BLOCKS = 13
_FILE = "data/sets/big.bin"


@pytest.mark.soak
def test_a_large_file_is_uploaded_in_ranges_loses_a_worker_and_is_copied_in_ranges(
    project: Project, new_container: Callable[[str], Container], service: str
) -> None:
    here, there = new_container("one"), new_container("two")
    project.environ["BLOBSYNC_SPREAD_RANGE"] = str(4 << 20)
    write_tree(project.root, {_FILE: _BIG})
    with copy_source_proxy(service) as proxy:
        project.configure(here, url=proxy.url)
        project.configure(there, cluster="other", url=proxy.url)
        words = ("u", _FILE, "--nodes", "2")
        plan = project.json("plan", *words)
        assert (plan.data["spread"]["cut_files"], plan.data["spread"]["range_bytes"]) == (1, 4 << 20), str(plan)
        assert "1 file cut into ranges of about 4.19 MB" in project.run("plan", *words).out

        process = project.start(*words, "--cap-mbps", "60", "--json")

        def sent() -> int:
            return proxy.stats().operations.get("put block", 0)

        assert wait_until(lambda: sent() > 1 or process.poll() is not None, seconds=60)
        for pid in workers_of(project.root)[:1]:
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: _is_told_of(here) or process.poll() is not None, seconds=60, pause=0.05)
        assert process.poll() is None, str(project.finish(process))
        process.send_signal(signal.SIGINT)
        stopped = project.finish(process)
        assert stopped.code == 130 and not here.contents("data/"), str(stopped)
        done = project.json(*words)
        assert (done.code, done.data["transferred"], done.data["verified"]) == (0, 1, 1), str(done)
        # Blocks of the first run are not put again.
        assert 0 < done.data["bytes_reused"] == len(_BIG) - done.data["bytes_transferred"], str(done)
        assert sent() < 2 * _BLOCKS
        _is_whole(here)

        copy = project.json("-c", "other", *words, "-f", "aml")
        assert (copy.code, copy.data["transferred"]) == (0, 1), str(copy)
        assert proxy.stats().fetched == len(_BIG) and proxy.stats().downloaded < 1 << 20
        _is_whole(there)
        (project.root / _FILE).unlink()
        refused = project.json("d", _FILE, "--nodes", "2", "--detach")
        assert refused.code == 2 and "is one file, and no node can show" in refused.errors[0]["message"], str(refused)
        back = project.json("d", _FILE, "--nodes", "2")
        assert (back.code, back.data["transferred"]) == (0, 1), str(back)
        assert read_tree(project.data) == {"sets/big.bin": sha256(_BIG)}


def _is_told_of(container: Container) -> bool:
    """Whether a worker has reported a block; the one that reads the file for its MD5 reports none."""
    for name in container.names(".blobsync/spread/"):
        if "/records/" in name:
            with suppress(ResourceNotFoundError):
                body = container.get(name)
                if b'{"block"' in body and b'{"bytes"' in body:
                    return True
    return False


def _is_whole(container: Container) -> None:
    assert container.contents() == {_FILE: sha256(_BIG)}
    blob = container.blob(_FILE)
    assert blob.get_blob_properties().content_settings.content_md5 == bytearray(hashlib.md5(_BIG).digest())
    committed, uncommitted = blob.get_block_list("all")
    assert (len(committed), len(uncommitted)) == (_BLOCKS, 0)
