"""Names: every valid one is transferred both ways unchanged; all invalid ones are refused at once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.e2e.world import Container, Project, hashes, on_flat_accounts, read_tree, write_tree
from tests.servers.recording_server import RecordingServer

pytestmark = pytest.mark.e2e

# Names that have broken some tool: URL syntax, glob syntax, encodings, markers, options, unicode.
_LEGAL = (
    " leading space",
    "trailing space ",
    "inner  two spaces",
    ".hidden",
    "trailing dot.",
    "...",
    "~tilde",
    "a#b",
    "a?b",
    "a?sv=1&sig=x",
    "a%b",
    "a%20b",
    "test%46.txt",
    "a%2Fb",
    "100%",
    "a+b",
    "a&b=c",
    "a;b",
    "a,b",
    "a:b",
    "a@b",
    "a$b",
    "a!b",
    "a'b",
    'a"b',
    "a`b",
    "a^b",
    "a|b",
    "a<b>c",
    "a[0-9]",
    "a{b}",
    "a(b)",
    "a*b",
    "file*.txt",
    "file*1.txt",
    "-rf",
    "--delete-destination=true",
    "CON",
    "nul.txt",
    "C:x",
    "caf\u00e9",
    "cafe\u0301",
    "\u4e2d\u6587/\u30d5\u30a1\u30a4\u30eb",
    "\U0001f600.bin",
    "\u202ertl",
    "folder with #/and %/f\u00eb",
    "A",
    "a",
    "x.tmp",
    ".git/config",
    "n" * 255,
    "d" * 200 + "/" + "e" * 255,
    "/".join(f"{level}" for level in range(60)),
    "/".join(["p" * 200] * 5),
)
_FILES = {name: name.encode() for name in _LEGAL}


@pytest.mark.parametrize("engine", ["direct", "azcopy"])
def test_every_legal_name_goes_there_and_back(
    engine: str, project: Project, container: Container, request: pytest.FixtureRequest
) -> None:
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    write_tree(project.data, _FILES)
    project.configure(container)
    up = project.json("u", "data", "--engine", engine)
    assert (up.code, up.data["transferred"]) == (0, len(_FILES)), str(up)
    assert container.contents("data/") == hashes(_FILES)
    project.data.rename(project.root / "away")
    down = project.json("d", "data", "--engine", engine)
    assert (down.code, down.data["transferred"]) == (0, len(_FILES)), str(down)
    assert read_tree(project.data) == hashes(_FILES)
    again = project.json("u", "data")
    assert (again.code, again.data["unchanged"]) == (0, len(_FILES)), str(again)


@pytest.mark.parametrize(
    "name",
    [
        "a?sv=1&sig=x",
        "test%46.txt",
        *(pytest.param(n, marks=pytest.mark.soak) for n in ("a#b", "file*.txt", "caf\u00e9", "-rf")),
    ],
)
def test_a_single_file_of_an_odd_name(name: str, project: Project, container: Container) -> None:
    write_tree(project.data, {name: b"one", "file*1.txt": b"another"})
    project.configure(container)
    assert project.json("u", f"data/{name}").code == 0
    assert container.contents("data/") == hashes({name: b"one"})
    (project.data / name).unlink()
    assert project.json("d", f"data/{name}").code == 0
    assert (project.data / name).read_bytes() == b"one"
    listed = project.json("ls", f"data/{name}")
    assert [each["path"] for each in listed.data["entries"]] == [f"data/{name}"]
    assert project.json("rm", f"data/{name}", "-y").code == 0
    assert container.contents("data/") == {}


_BACK = {"back\\slash": b"here", "d/x\\..\\y": b"up", "plain": b"plain"}


@pytest.mark.parametrize("engine", ["direct", "azcopy"])
def test_a_file_with_a_backslash_in_its_name_is_left_out_with_the_reason(
    engine: str, project: Project, container: Container, request: pytest.FixtureRequest
) -> None:
    """The service would store it under the name of another existing blob."""
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    write_tree(project.data, _BACK)
    project.configure(container)
    container.put("data/back/slash", b"somebody's")
    for moved in (1, 0):
        done = project.json("u", "data", "--engine", engine, "--overwrite")
        assert (done.code, done.codes, done.data["transferred"]) == (3, {"names_unsafe"}, moved), str(done)
        assert done.named() == {"data/back\\slash", "data/d/x\\..\\y"}
        assert "its name contains a backslash, which the service takes for '/'" in str(done)
    done = project.json("u", "data", "--mirror", "-y", "--max-delete", "9", "--engine", engine)
    assert done.code == 3
    assert container.contents("data/") == hashes({"plain": b"plain", "back/slash": b"somebody's"})
    for deep in ((), ("--deep",)):
        done = project.json("verify", "data", *deep)
        assert (done.code, done.data["counts"]["equal"]) == (3, 1), str(done)
        assert {each["path"]: each["status"] for each in done.data["not_equal"]} == {
            "data/back/slash": "remote_only", "data/back\\slash": "local_only", "data/d/x\\..\\y": "local_only"
        }  # fmt: skip
    for name in _BACK:
        (project.data / name).unlink() if name != "plain" else None
    assert project.json("u", "data", "--engine", engine).code == 0
    assert project.json("verify", "data/plain").code == 0


@pytest.mark.parametrize(
    "words", [("u",), ("d",), ("rm", "-y"), ("rm", "-y", "--blob"), ("ls",), ("url",), ("stat",), ("diff",)]
)
def test_a_path_with_a_backslash_means_no_other_blob(
    project: Project, container: Container, words: tuple[str, ...]
) -> None:
    write_tree(project.data, {"back\\slash": b"here"})
    container.put("data/back/slash", b"somebody's")
    project.configure(container)
    done = project.json(*words, "data/back\\slash")
    assert (done.code, done.codes) == (2, {"path_invalid"}), str(done)
    assert "contains a backslash" in done.errors[0]["message"] and "data/back/slash" in done.errors[0]["hint"]
    assert container.contents("data/") == hashes({"back/slash": b"somebody's"})


def test_a_blob_with_a_backslash_is_not_read_linked_or_deleted(project: Project, hostile: RecordingServer) -> None:
    hostile.answers["GET /one/hostile"] = _listing(("sub/a\\..\\..\\victim", "sub/b\\c"))
    hostile.answers["HEAD /one/hostile/data"] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    project.configure(Container(hostile.url, "one", "AAAA", "hostile"), url=hostile.url)
    write_tree(project.data, {"other": b"o"})
    done = project.json("d", "data")
    assert done.code != 0 and not any(name.startswith("sub") for name in read_tree(project.data)), str(done)
    done = project.json("rm", "data", "-y")
    assert (done.code, done.codes) == (1, {"delete_failed"}), str(done)
    done = project.json("url", "data", "--each")
    assert (done.code, done.codes) == (1, {"unsafe_name"}), str(done)
    asked = [request.split(b"\r\n")[0] for request in hostile.requests]
    assert not [line for line in asked if b"victim" in line or b"%5C" in line or line.startswith(b"DELETE")], asked


# Names that a service may list, but this disk cannot have.
_HOSTILE = (
    "../evil",
    "../../evil",
    "a/../../evil",
    "..",
    "a/..",
    "a/./b",
    "/etc/evil",
    "a//b",
    "c\x00d",
    *("n" * 256 + str(number) for number in range(25)),
    "x",
    "x/y",
)


def _listing(names: tuple[str, ...], size: str = "4") -> bytes:
    blobs = "".join(
        f"<Blob><Name Encoded='true'>{_percent(f'data/{name}')}</Name><Properties><Etag>0x1</Etag>"
        f"<Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT</Last-Modified><Content-Length>{size}</Content-Length>"
        "<BlobType>BlockBlob</BlobType></Properties></Blob>"
        for name in names
    )
    body = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


@pytest.fixture
def hostile() -> Iterator[RecordingServer]:
    """A service that lists any names, with four bytes of content each."""
    with RecordingServer({"GET /one/hostile": _listing((*_HOSTILE, "fine.txt"))}) as server:
        yield server


def test_names_that_cannot_be_are_refused_all_at_once_before_anything_moves(
    project: Project, hostile: RecordingServer
) -> None:
    container = Container(hostile.url, "one", "AAAA", "hostile")
    hostile.answers["HEAD /one/hostile/data"] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    project.configure(container, url=hostile.url)
    outside = read_tree(project.root)
    done = project.json("d", "data")
    assert (done.code, done.codes) == (2, {"names_unsafe"}), str(done)
    # Either of the last two may exist, but not both.
    assert {f"data/{name}" for name in _HOSTILE[:-1]} <= done.named(), str(done)
    assert "'data/../evil' has the part '..'" in done.errors[0]["message"]
    assert not project.data.exists()
    assert {name: each for name, each in read_tree(project.root).items() if not name.startswith(".blobsync")} == outside
    assert not (project.root.parent / "evil").exists()
    assert not os.path.exists("/etc/evil")
    assert not [request for request in hostile.requests if b" /one/hostile/data/" in request.split(b"\r\n")[0]]


def test_a_listed_size_that_cannot_be_is_an_error_that_names_the_blob(
    project: Project, hostile: RecordingServer
) -> None:
    hostile.answers["GET /one/hostile"] = _listing(("x/fine", "x/odd"), size="-1")
    hostile.answers["HEAD /one/hostile/data"] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    project.configure(Container(hostile.url, "one", "AAAA", "hostile"), url=hostile.url)
    done = project.json("d", "data")
    assert (done.code, done.codes) == (1, {"storage_error"}), str(done)
    assert "'data/x/fine': '-1' is not a blob size" in done.errors[0]["message"]
    assert not project.data.exists()


@on_flat_accounts
def test_a_blob_beside_a_folder_of_its_name_is_an_error_that_names_both(project: Project, container: Container) -> None:
    container.put("data/a", b"file")
    container.put("data/a/b", b"below")
    project.configure(container)
    done = project.json("d", "data/a")
    assert done.code == 2, str(done)
    assert done.codes == {"shape_conflict"}
    assert "data/a/" in done.out
    folder = project.json("d", "data/a/")
    assert folder.code == 0, str(folder)
    assert read_tree(project.data) == hashes({"a/b": b"below"})


def test_a_path_touches_no_neighbour_of_a_longer_name(project: Project, container: Container) -> None:
    for name in ("voc/a", "voc20/b", "voc-old/c", "vocabulary"):
        container.put(f"data/{name}", name.encode())
    project.configure(container)
    assert project.json("d", "data/voc").code == 0
    assert read_tree(project.data) == hashes({"voc/a": b"voc/a"})
    removed = project.json("rm", "data/voc", "-y")
    assert removed.code == 0, str(removed)
    assert set(container.contents("data/")) == {"voc20/b", "voc-old/c", "vocabulary"}


def test_names_the_service_does_not_take_are_left_out_and_named(project: Project, container: Container) -> None:
    long = "/".join(["p" * 250] * 5)
    files = {
        "fine": b"f",
        "with\nnewline": b"n",
        "with\rreturn": b"r",
        "bell\x07": b"b",
        "deep/tab\t": b"t",
        long: b"l",
    }
    write_tree(project.data, files)
    invalid = os.fsencode(project.data) + b"/invalid-\xfe"
    with open(invalid, "wb") as stream:
        stream.write(b"i")
    project.configure(container)
    for words in (("plan", "u", "data"), ("u", "data"), ("u", "data")):
        done = project.json(*words)
        assert (done.code, done.codes) == (3, {"names_unsafe"}), str(done)
        assert len(done.errors) == len(files)
        for part in ("newline", "return", "bell", "tab", "invalid-", long):
            assert part in done.out, str(done)
    assert container.contents("data/") == hashes({"fine": b"f"})
    single = project.json("u", "data/with\nnewline")
    assert (single.code, single.codes) == (2, {"names_unsafe"}), str(single)
    assert container.names() == ["data/fine"]


@on_flat_accounts
def test_a_blob_is_not_made_a_folder_as_well_and_one_that_is_can_be_removed(
    project: Project, container: Container
) -> None:
    project.configure(container)
    write_tree(project.data, {"t/a": b"below"})
    container.put("data/t", b"a blob")
    for path in ("data/t/", "data/t/a", "data/t", "data"):
        refused = project.json("u", path)
        assert (refused.code, refused.data) == (2, {}), str(refused)
        assert "blobsync rm --blob data/t" in refused.errors[0]["hint"], str(refused)
    assert container.names() == ["data/t"]
    container.put("data/t/a", b"made by somebody else")
    (project.data / "t/a").unlink()
    for path in ("data", "data/t"):
        refused = project.json("d", path)
        assert (refused.code, "rm --blob data/t" in refused.errors[0]["hint"]) == (2, True), str(refused)
    shown = project.json("rm", "--blob", "data/t", "--dry-run")
    assert (shown.data["count"], shown.data["deleted"]) == (1, 0), str(shown)
    gone = project.json("rm", "--blob", "data/t", "-y")
    assert (gone.code, gone.data["deleted"]) == (0, 1), str(gone)
    assert container.names() == ["data/t/a"]
    assert project.json("rm", "--blob", "data/t", "-y").code == 4
    assert project.json("d", "data").code == 0
    assert project.json("u", "data").code == 0


@on_flat_accounts
def test_folder_markers_and_leftovers_are_not_files(project: Project, container: Container) -> None:
    container.put("data/real.txt", b"real")
    container.put("data/folder", b"", metadata={"hdi_isfolder": "true"})
    container.put("data/folder/inside.txt", b"inside")
    container.put("data/slash/", b"")
    project.configure(container)
    down = project.json("d", "data")
    assert down.code == 0, str(down)
    assert read_tree(project.data) == hashes({"real.txt": b"real", "folder/inside.txt": b"inside"})
    leftovers = {
        ".azDownload-01234567-89ab-cdef-0123-456789abcdef-x.bin": b"half",
        ".blobsync-0a1b2c3d.part": b"half",
    }
    write_tree(project.data, leftovers)
    assert project.json("u", "data").code == 0
    assert not set(leftovers) & set(container.contents("data/"))
