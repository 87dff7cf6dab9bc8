"""azcopy writes only in its own folders, whatever a service lists; unplanned files are reported, and not kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.azcopy.sandbox import Landlock
from tests.e2e.world import Container, Project, hashes, read_tree
from tests.servers.lying_listing import lying_listing

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not Landlock().is_possible, reason="this kernel has no Landlock"),
]

FILES = {f"part{number % 3}/f{number}.bin": bytes([number]) * 5000 for number in range(21)}


@pytest.mark.parametrize(
    "name",
    ["../../../escaped.txt", "../../outside.txt", "../../../home/.bashrc", "../.blobsync-0a1b2c3d.part", "planted.txt"],
)
def test_names_that_only_azcopy_is_shown_reach_no_place_of_the_user(
    name: str, with_azcopy: Project, container: Container, service: str, tmp_path: Path
) -> None:
    for path, data in FILES.items():
        container.put(f"data/{path}", data)
    container.put("evil", b"evil")
    (tmp_path / "home" / ".bashrc").write_text("mine\n")
    before = read_tree(tmp_path)
    with lying_listing(service, f"/{container.account}/{container.name}/evil", [name]) as server:
        with_azcopy.configure(container, url=server.url)
        done = with_azcopy.json("d", "data", "--engine", "azcopy")
        assert server.injected().get("listing with more names"), "azcopy was never shown the name"
    after = read_tree(tmp_path)
    written = {path for path in after if after[path] != before.get(path)}
    ours = ("project/data/", "project/.blobsync/", "project/aux_data/", "home/.config/blobsync/state.key")
    assert not {path for path in written if not path.startswith(ours)}, str(done)
    assert read_tree(with_azcopy.data) == hashes(FILES), str(done)
    assert after["home/.bashrc"] == before["home/.bashrc"]
    assert done.code == 3, str(done)
    assert done.codes == {"not_asked_for"}
    assert any(name.rpartition("/")[2] in path for path in done.named()), str(done)


@pytest.mark.parametrize("name", [".azDownload-01234567-89ab-cdef-0123-456789abcdef-x", "a/"])
def test_a_name_that_looking_leaves_out_is_not_left_to_azcopys_own_listing(
    name: str, with_azcopy: Project, container: Container
) -> None:
    for path, data in FILES.items():
        container.put(f"data/{path}", data)
    container.put(f"data/{name}", b"" if name.endswith("/") else b"unfinished")
    with_azcopy.configure(container)
    done = with_azcopy.json("d", "data", "--engine", "azcopy")
    assert (done.code, done.data["transferred"]) == (0, len(FILES)), str(done)
    assert read_tree(with_azcopy.data) == hashes(FILES)
