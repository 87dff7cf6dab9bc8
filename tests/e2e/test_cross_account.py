"""From one account to another: server to server, exact, explained where refused, and no secret on show."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from azure.storage.blob import ContentSettings, StandardBlobTier

from tests.e2e.tally import Tally
from tests.e2e.world import (
    AS_INSTALLED,
    Container,
    Done,
    Project,
    command_lines,
    every_text_below,
    hashes,
    random_files,
    write_tree,
)
from tests.servers.copy_source_proxy import CopySourceHandle, Refusal, copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.servers.lying_listing import lying_listing

pytestmark = pytest.mark.e2e

_MIB = 1 << 20
_ODD = {"caf\u00e9 #1/100% sure.bin": b"odd", "a%20b": b"percent", "x+y&z=1": b"plus", " space ": b"space"}


@pytest.fixture
def copying(service: str) -> Iterator[CopySourceHandle]:
    with copy_source_proxy(service) as proxy:
        yield proxy


@pytest.fixture
def far_copying(service: str) -> Iterator[CopySourceHandle]:
    """The same at an address that blobsync does not take for an emulator's, where it relays without being asked."""
    with copy_source_proxy(service, host="127.0.0.2") as proxy:
        yield proxy


@pytest.fixture
def ends(new_container: Callable[[str], Container]) -> tuple[Container, Container]:
    """A container in each of two accounts."""
    return new_container("one"), new_container("two")


def _configure(project: Project, ends: tuple[Container, Container], url: str, *, sas: bool = False) -> None:
    """Two clusters. With ``sas``, because a key's signature covers headers that the proxy has to change; azcopy gets
    a SAS in any case."""
    for cluster, path, end in zip(("we3v32", "eu"), ("far/data", "near/data"), ends, strict=True):
        project.configure(end, cluster=cluster, url=url, path=path, sas=end.sas() if sas else None)


def _fill(container: Container, files: Mapping[str, bytes], prefix: str = "far/data/") -> None:
    for name, data in files.items():
        container.put(prefix + name, data)


# Requests that move content.
_CONTENT = ("put blob", "put block", "put blob from url", "put block from url", "get blob")
_COPY = ("-c", "eu", "-f", "we3v32", "u", "data")


@pytest.mark.parametrize("engine", ["azcopy", "direct"])
def test_a_copy_goes_server_to_server(
    engine: str,
    project: Project,
    ends: tuple[Container, Container],
    copying: CopySourceHandle,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    files = {**random_files(3, 15, [9 * _MIB]), **_ODD}
    _fill(ends[0], files)
    _configure(project, ends, copying.url, sas=engine == "direct")
    copying.reset()
    done = project.json(*_COPY, "--engine", engine)
    assert (done.code, done.data["transferred"], done.data["route"]) == (0, 20, "cross-account"), str(done)
    assert ends[1].contents("near/data/") == hashes(files)
    stats = copying.stats()
    assert stats.through_clients < 1_000_000, stats
    assert stats.downloaded == 0 == stats.uploaded, stats
    assert stats.fetched >= sum(map(len, files.values()))
    # There again, and back: nothing to do, and nothing moves.
    for words in (_COPY, ("-c", "we3v32", "-f", "eu", "u", "data")):
        copying.reset()
        again = project.json(*words)
        assert (again.code, again.data["transferred"], again.data["unchanged"]) == (0, 0, 20), str(again)
        assert copying.stats().fetched == 0
    # Only what differs is copied.
    _configure(project, ends, copying.url, sas=True)
    for end, name in ((ends[0], "far/data/part0/f0003.bin"), (ends[0], "far/data/new"), (ends[1], "near/data/a%20b")):
        end.put(name, b"edited")
    last = project.json(*_COPY)
    assert (last.code, last.data["transferred"], last.data["newer_at_destination"]) == (0, 2, 1), str(last)
    edited = dict.fromkeys(("part0/f0003.bin", "new", "a%20b"), b"edited")
    assert ends[1].contents("near/data/") == hashes({**files, **edited})


@pytest.fixture
def lied_to(with_azcopy: Project, ends: tuple[Container, Container], service: str) -> Callable[..., Done]:
    """Copies by azcopy, to which the listing below a blob shows these names as well."""
    source = ends[0]
    source.put("evil", b"evil")

    def copied(*names: str, fault: str = "listing with more names", **hidden: str) -> Done:
        with (
            lying_listing(service, f"/{source.account}/{source.name}/evil", names, **hidden) as liar,
            copy_source_proxy(liar.url) as copying,
        ):
            _configure(with_azcopy, ends, copying.url, sas=True)
            done = with_azcopy.json(*_COPY, "--engine", "azcopy")
            assert not fault or liar.injected().get(fault), "azcopy was never shown the names"
            return done

    return copied


@pytest.mark.parametrize(
    "name",
    ["../victim", *(pytest.param(n, marks=pytest.mark.soak) for n in ("../fresh", "x/../../victim", "../../victim"))],
)
def test_names_that_only_azcopy_is_shown_reach_no_other_place_of_a_container(
    name: str, lied_to: Callable[..., Done], ends: tuple[Container, Container]
) -> None:
    files = random_files(8, 9)
    _fill(ends[0], files)
    ends[1].put("near/victim", b"mine")
    done = lied_to(name)
    assert (done.code, done.data["transferred"]) == (0, len(files)), str(done)
    assert ends[1].contents("near/data/") == hashes(files) and ends[1].get("near/victim") == b"mine"
    assert len(ends[1].names()) == len(files) + 1


def test_a_name_that_only_azcopy_is_shown_replaces_nothing(
    lied_to: Callable[..., Done], ends: tuple[Container, Container]
) -> None:
    files = random_files(8, 9)
    _fill(ends[0], files)
    ends[1].put("near/data/only-here", b"mine")
    done = lied_to("only-here", fault="")
    assert (done.code, done.data["transferred"]) == (0, len(files)), str(done)
    assert ends[1].contents("near/data/") == hashes({**files, "only-here": b"mine"})


@pytest.mark.parametrize(
    "name",
    ["part0/planted", "..\\planted", *(pytest.param(n, marks=pytest.mark.soak) for n in ("planted", "%2e%2e/planted"))],
)
def test_names_that_only_azcopy_is_shown_are_reported_where_they_arrive(
    name: str, lied_to: Callable[..., Done], ends: tuple[Container, Container]
) -> None:
    files = random_files(8, 9)
    _fill(ends[0], files)
    done = lied_to(name)
    arrived = set(ends[1].names()) - {f"near/data/{path}" for path in files}
    assert arrived and all(path.startswith("near/data/") for path in arrived)
    assert (done.code, done.data["transferred"], done.codes) == (3, len(files), {"not_asked_for"}), str(done)
    assert {path.partition("data/")[2] for path in done.named()} == {path[len("near/data/") :] for path in arrived}


def test_a_listed_blob_that_azcopy_is_told_is_a_folder_brings_no_names_of_the_servers(
    lied_to: Callable[..., Done], ends: tuple[Container, Container]
) -> None:
    _fill(ends[0], {"big0": os.urandom(9 * _MIB), "big1": os.urandom(9 * _MIB), "old": b"same"})
    ends[1].put("near/data/old", b"same")
    done = lied_to("planted", "../../victim", fault="blob that is none", hidden="/big1")
    assert set(ends[1].names()) == {"near/data/big0", "near/data/old"}, str(done)
    assert (done.code, done.named()) == (3, {"data/big1"}), str(done)


@pytest.mark.parametrize("engine", ["azcopy", "direct"])
def test_properties_arrive_as_they_were(
    engine: str,
    project: Project,
    ends: tuple[Container, Container],
    copying: CopySourceHandle,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    settings = ContentSettings(content_type="image/x-odd", cache_control="no-store", content_language="eo")
    for name, data in (("small", b"s" * 1000), ("large", os.urandom(9 * _MIB))):
        ends[0].put(
            f"far/data/{name}",
            data,
            content_settings=settings,
            metadata={"who": "me"},
            standard_blob_tier=StandardBlobTier.COOL,
        )
    _configure(project, ends, copying.url, sas=engine == "direct")
    done = project.json(*_COPY, "--engine", engine)
    assert done.code == 0, str(done)
    for name in ("small", "large"):
        was, now = (
            end.blob(f"{prefix}/data/{name}").get_blob_properties()
            for end, prefix in zip(ends, ("far", "near"), strict=True)
        )
        for key in ("content_type", "cache_control", "content_language"):
            assert now.content_settings[key] == was.content_settings[key], (name, key)
        assert now.metadata == was.metadata == {"who": "me"}
        assert now.blob_tier == was.blob_tier == "Cool"
    assert copying.stats().fetched > 0


@pytest.mark.parametrize("engine", ["direct", pytest.param("relay", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "way",
    [("--overwrite",), ("--keep", "both"), pytest.param(("--keep", "local"), marks=pytest.mark.soak)],
    ids=" ".join,
)
def test_what_was_compared_by_content_is_checked_by_content(
    way: tuple[str, ...],
    engine: str,
    project: Project,
    ends: tuple[Container, Container],
    service: str,
) -> None:
    """No blob has an MD5, nor does what Copy Blob From URL makes of one: only bytes tell whether it arrived."""
    for end, name, data in ((ends[0], "far/data/a", b"mine"), (ends[1], "near/data/a", b"them")):
        end.put(name, data)
        end.blob(name).set_http_headers()
    _configure(project, ends, service, sas=True)
    done = project.json(*_COPY, "--engine", engine, "--compare-content", *way)
    assert (done.code, done.data["transferred"]) == (0, 1), str(done)
    assert ends[1].get("near/data/a") == b"mine"
    again = project.json(*_COPY, "--engine", engine, "--compare-content", *way)
    assert (again.code, again.data["transferred"], again.data["conflicts"]) == (0, 0, 0), str(again)


def test_a_copy_has_another_path_and_a_plan_and_a_download_of_it_its_way(
    project: Project, ends: tuple[Container, Container], copying: CopySourceHandle
) -> None:
    _fill(ends[0], _ODD)
    _configure(project, ends, copying.url, sas=True)
    for words, way in (((), "server to server"), (("--engine", "relay"), "through this machine")):
        said = project.run("plan", *_COPY, *words).out
        assert way in said, said
    assert ends[1].names() == []
    moved = project.json("-c", "eu", "-f", "we3v32", "u", "data/new", "--from-path", "data")
    assert (moved.code, moved.data["transferred"]) == (0, 4), str(moved)
    assert ends[1].contents("near/data/new/") == hashes(_ODD)
    here = project.json("-c", "eu", "-f", "we3v32", "d", "data")
    assert (here.code, here.data["transferred"]) == (0, 4), str(here)
    assert (project.data / "a%20b").read_bytes() == b"percent"


def test_the_same_place_is_nothing_to_do(
    project: Project, ends: tuple[Container, Container], copying: CopySourceHandle
) -> None:
    _fill(ends[0], _ODD)
    for cluster in ("we3v32", "eu"):
        project.configure(ends[0], cluster=cluster, url=copying.url, path="far/data")
    done = project.json(*_COPY)
    assert (done.code, done.data["transferred"]) == (0, 0), str(done)
    assert ends[0].contents("far/data/") == hashes(_ODD)


def test_within_one_account_the_service_copies(
    project: Project, ends: tuple[Container, Container], copying: CopySourceHandle
) -> None:
    files = {**_ODD, "large": os.urandom(9 * _MIB)}
    _fill(ends[0], files)
    for cluster, path in (("we3v32", "far/data"), ("eu", "near/data")):
        project.configure(ends[0], cluster=cluster, url=copying.url, path=path, sas=ends[0].sas())
    copying.reset()
    done = project.json(*_COPY)
    assert (done.code, done.data["transferred"], done.data["route"]) == (0, 5, "same-account"), str(done)
    assert ends[0].contents("near/data/") == hashes(files)
    assert copying.stats().through_clients < 100_000


@pytest.mark.parametrize("engine", ["azcopy", pytest.param("direct", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "kind", ["cannot_verify", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("firewall", "tenant"))]
)
def test_a_refused_source_is_explained_and_then_relayed(
    kind: str,
    engine: str,
    project: Project,
    ends: tuple[Container, Container],
    far_copying: CopySourceHandle,
    tally: Tally,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    files = random_files(3, 3)
    _fill(ends[0], files)
    _configure(project, ends, far_copying.url, sas=engine == "direct")
    far_copying.refuse(Refusal(kind))
    refused = project.json(*_COPY, "--engine", engine)
    assert refused.code in (1, 3), str(refused)
    assert "--relay" in refused.out, str(refused)
    assert "copy_source_refused" in refused.codes, str(refused)
    assert ends[1].names() == []
    done = project.json(*_COPY, "--relay")
    assert (done.code, done.data["transferred"]) == (0, 3), str(done)
    assert ends[1].contents("near/data/") == hashes(files)
    tally.faults(far_copying.stats().injected)
    tally.runs(honest=1, exact=1)


def test_the_emulators_own_lack_is_relayed_without_asking(
    project: Project, ends: tuple[Container, Container], service: str
) -> None:
    files = random_files(3, 8, [9 * _MIB])
    _fill(ends[0], files)
    _configure(project, ends, service)
    done = project.json(*_COPY)
    assert (done.code, done.data["transferred"]) == (0, 9), str(done)
    assert ends[1].contents("near/data/") == hashes(files)


@pytest.mark.soak
def test_a_relay_holds_little_in_memory(
    project: Project, ends: tuple[Container, Container], copying: CopySourceHandle
) -> None:
    ends[0].put("far/data/huge", os.urandom(224 * _MIB))
    _configure(project, ends, copying.url)
    process = replace(project, before=AS_INSTALLED).start(*_COPY, "--engine", "relay", "--json")
    peak = 0
    while process.poll() is None:
        try:
            status = Path("/proc", str(process.pid), "status").read_text()
        except OSError:
            break
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        peak = max(peak, int(found[1]) if found else 0)
        time.sleep(0.02)
    done = project.finish(process)
    assert done.code == 0, str(done)
    assert peak < 150 * 1024, f"{peak} kB"
    assert ends[1].blob("near/data/huge").get_blob_properties().size == 224 * _MIB


class TestSecrets:
    """A key or a signature is on show nowhere, and what azcopy gets is narrow."""

    @staticmethod
    def _watched(project: Project, holding: FaultHandle, *words: str) -> tuple[Done, set[str]]:
        # azcopy cannot end before it was seen.
        holding.inject(Fault("hold", at=(1,), operations=_CONTENT))
        process = replace(project, before=AS_INSTALLED).start(*words)
        lines: set[str] = set()
        is_held = True
        while process.poll() is None:
            began = time.monotonic()
            is_at_work = is_held and holding.is_holding()
            lines |= command_lines(process.pid)
            if is_at_work:
                holding.release()
                is_held = False
            # As long as the look took: what is looked at needs the processor, too.
            time.sleep(max(0.01, time.monotonic() - began))
        return project.finish(process), lines

    def test_a_key_never_reaches_a_command_line(
        self, with_azcopy: Project, ends: tuple[Container, Container], copying: CopySourceHandle
    ) -> None:
        project = with_azcopy
        files = random_files(3, 8, [9 * _MIB])
        write_tree(project.data, files)
        runs = {
            "upload": ("-c", "we3v32", "u", "data", "--engine", "azcopy", "--json"),
            "copy": (*_COPY, "--engine", "azcopy", "--json"),
            "download": ("-c", "eu", "d", "data", "--engine", "azcopy", "--overwrite", "--json"),
        }
        for name, words in runs.items():
            if name == "download":
                for file in files:
                    (project.data / file).unlink()
            with fault_proxy(copying.url) as holding:
                _configure(project, ends, holding.url)
                done, lines = self._watched(project, holding, *words)
            assert done.code == 0, str(done)
            azcopy_lines = [line for line in lines if "sig=" in line]
            assert azcopy_lines, f"azcopy was not seen at work in {name}"
            for line in lines:
                assert ends[0].key not in line
                assert "srt=" not in line, "an account SAS"
                assert "sr=c" in line or "sig=" not in line
            for line in azcopy_lines:
                rights = re.findall(r"[?&]sp=([a-z]+)", line)
                assert rights
                assert all("d" not in each for each in rights), rights
                if name == "download":
                    assert all("w" not in each and "c" not in each for each in rights), rights

    def test_a_signature_is_found_in_no_output_and_no_file(
        self, with_azcopy: Project, ends: tuple[Container, Container], far_copying: CopySourceHandle
    ) -> None:
        project = with_azcopy
        _fill(ends[0], random_files(3, 5, [9 * _MIB]))
        tokens = [end.sas("rwdlc") for end in ends]
        for end, token, cluster, path in zip(ends, tokens, ("we3v32", "eu"), ("far", "near"), strict=True):
            project.configure(end, cluster=cluster, url=far_copying.url, path=f"{path}/data", sas=token)
        plan = project.root / "saved.plan"
        runs = [
            project.run("-vv", "plan", "-c", "eu", "-f", "we3v32", "u", "data", "--save", str(plan)),
            project.run("-vv", *_COPY, "--engine", "azcopy"),
            project.run("-vv", "-c", "we3v32", "d", "data", "--engine", "azcopy"),
            project.run("-vv", "-c", "we3v32", "ls", "-r", "data"),
            project.run("-vv", "-c", "we3v32", "resolve", "data/x"),
            project.run("-vv", "-c", "we3v32", "verify", "data"),
            project.json("doctor"),
            project.run("-vv", "-c", "we3v32", "d", "data/no-such-file"),
        ]
        far_copying.refuse(Refusal("cannot_verify"))
        ends[0].put("far/data/refused", b"r")
        runs.append(project.run("-vv", *_COPY, "--engine", "azcopy"))
        for cluster in ("we3v32", "eu"):
            broken = project.root / f"aux_data/configs/{cluster}.yaml"
            broken.write_text(broken.read_text().replace("sig=", "sig=AAAA"))
        runs.append(project.run("-vv", *_COPY))
        sentinels = [re.search(r"sig=([^&]+)", token)[1] for token in tokens]  # type: ignore[index]
        sentinels += [sentinel.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=") for sentinel in sentinels]
        for done in runs:
            for sentinel in sentinels:
                assert sentinel not in done.out + done.err, " ".join(done.argv)
        texts = [
            (file, data)
            for file, data in every_text_below(project.root, Path(project.environ["HOME"]))
            if "aux_data" not in file.parts
        ]
        assert {".sqlite", ".json", ".plan"} <= {file.suffix for file, _ in texts}
        for file, data in texts:
            for sentinel in sentinels:
                assert sentinel.encode() not in data, file


_SAS_FAULTS: dict[str, tuple[Callable[[Container], str], str, set[str], str]] = {
    "expired": (lambda container: container.sas("rwl", hours=-1), "u", {"sas_expired"}, "expired|ended"),
    "read-only": (lambda container: container.sas("rl"), "u", {"sas_permission"}, r"needs .*w.*has r"),
    "write-only": (lambda container: container.sas("w"), "d", {"sas_permission"}, r"needs .*(r|l).*has w"),
    "of a wrong signature": (
        lambda container: re.sub(r"sig=[^&]{6}", "sig=AAAAAA", container.sas("rwl")),
        "u",
        {"access_denied"},
        "does not accept",
    ),
    "cut short": (lambda container: container.sas("rwl").partition("&sig")[0], "u", {"config_invalid"}, "sig"),
}


@pytest.mark.parametrize("name", _SAS_FAULTS)
def test_each_wrong_sas_has_its_own_sentence(name: str, project: Project, container: Container) -> None:
    make, direction, codes, sentence = _SAS_FAULTS[name]
    write_tree(project.data, {"a.txt": b"a"})
    container.put("data/b.txt", b"b")
    project.configure(container, sas=make(container))
    done = project.json(direction, "data")
    assert done.code == 2, str(done)
    assert done.codes == codes, str(done)
    assert re.search(sentence, done.errors[0]["message"]), str(done)
    assert container.contents("data/") == hashes({"b.txt": b"b"})
    assert not (project.data / "b.txt").exists()


def test_a_sas_that_ends_soon_is_warned_about(project: Project, container: Container) -> None:
    write_tree(project.data, {"a.txt": b"a"})
    project.configure(container, sas=container.sas("rwl", hours=0.5))
    done = project.run("u", "data")
    assert done.code == 0, str(done)
    assert re.search(r"SAS.*(ends|expires)", done.err), str(done)


def test_a_sas_of_another_container_is_reported(
    project: Project, container: Container, new_container: Callable[[str], Container]
) -> None:
    write_tree(project.data, {"a.txt": b"a"})
    project.configure(container, sas=new_container("one").sas("rwl"))
    done = project.json("u", "data")
    assert done.code == 2, str(done)
    assert "container" in done.errors[0]["message"], str(done)
