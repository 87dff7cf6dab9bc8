"""azcopy's command lines, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.azcopy.argv import AzcopyTuning, child_environment, copy_command, download_command, tuning, upload_command
from blobsync.base.locations import BlobContainer, BlobLocation
from blobsync.base.redaction import SasToken

SAS = SasToken.parse("sv=2024-11-04&sp=w&sig=SENTINEL")
OTHER = SasToken.parse("sp=rw&sig=OTHERSENTINEL")
CONTAINER = BlobContainer("acc", "data", "https://acc.blob.core.windows.net")
HOW = AzcopyTuning(connections=32, block_mb=8.0)
BINARY = Path("/bin/azcopy")

COMMON = (
    "--overwrite=true",
    "--include-directory-stub=false",
    "--output-type=json",
    "--output-level=default",
    "--log-level=ERROR",
    "--skip-version-check",
    "--cancel-from-stdin",
    "--block-size-mb=8",
    "--put-blob-size-mb=8",
)


def blob(name: str) -> BlobLocation:
    return CONTAINER.child(name)


def test_upload() -> None:
    command = upload_command(BINARY, Path("/state/links"), blob("path/to/é #1"), SAS, HOW)
    assert command.argv == (
        "/bin/azcopy",
        "copy",
        "/state/links",
        "https://acc.blob.core.windows.net/data/path/to/%C3%A9%20%231/?sv=2024-11-04&sp=w&sig=SENTINEL",
        "--from-to=LocalBlob",
        "--recursive=true",
        "--as-subdir=false",
        "--follow-symlinks=true",
        "--put-md5=true",
        "--check-length=false",
        "--blob-type=BlockBlob",
        *COMMON,
    )


def test_upload_into_the_container_itself() -> None:
    assert (
        upload_command(BINARY, Path("/l"), blob(""), SAS, HOW)
        .argv[3]
        .startswith("https://acc.blob.core.windows.net/data/?")
    )


def test_download_of_a_folder() -> None:
    command = download_command(BINARY, blob("x"), SAS, Path("/p/.blobsync-0.part/f"), HOW, folder=True)
    assert command.argv == (
        "/bin/azcopy",
        "copy",
        "https://acc.blob.core.windows.net/data/x/?sv=2024-11-04&sp=w&sig=SENTINEL",
        "/p/.blobsync-0.part/f",
        "--from-to=BlobLocal",
        "--recursive=true",
        "--as-subdir=false",
        "--check-length=true",
        "--check-md5=NoCheck",
        "--decompress=false",
        "--preserve-last-modified-time=false",
        *COMMON,
    )


def test_download_of_some_blobs_of_a_folder() -> None:
    command = download_command(BINARY, blob("x"), SAS, Path("/t"), HOW, folder=True, listed=Path("/s/files.txt"))
    assert command.argv[5:8] == ("--recursive=false", "--as-subdir=false", "--list-of-files=/s/files.txt")


def test_download_of_one_blob() -> None:
    command = download_command(BINARY, blob("x/a?b"), SAS, Path("/t"), HOW, folder=False)
    assert command.argv[2] == "https://acc.blob.core.windows.net/data/x/a%3Fb?sv=2024-11-04&sp=w&sig=SENTINEL"
    assert command.argv[5:7] == ("--recursive=false", "--as-subdir=false")


def test_copy() -> None:
    command = copy_command(BINARY, (blob("x"), SAS), (blob("y"), OTHER), HOW, folder=True)
    assert command.argv == (
        "/bin/azcopy",
        "copy",
        "https://acc.blob.core.windows.net/data/x/?sv=2024-11-04&sp=w&sig=SENTINEL",
        "https://acc.blob.core.windows.net/data/y/?sp=rw&sig=OTHERSENTINEL",
        "--from-to=BlobBlob",
        "--recursive=true",
        "--as-subdir=false",
        r"--exclude-regex=(^|/)\.\.?(/|$)",
        "--check-length=false",
        "--s2s-preserve-properties=true",
        "--s2s-preserve-access-tier=true",
        "--s2s-preserve-blob-tags=false",
        "--s2s-detect-source-changed=true",
        "--s2s-handle-invalid-metadata=FailIfInvalid",
        *COMMON,
    )


def test_a_copy_of_what_is_listed_needs_no_filter() -> None:
    ends = (blob("x"), SAS), (blob("y"), OTHER)
    for command in (
        copy_command(BINARY, *ends, HOW, folder=True, listed=Path("/l")),
        copy_command(BINARY, *ends, HOW, folder=False),
    ):
        assert not [word for word in command.argv if "regex" in word]


def test_copy_without_the_right_to_ask_for_tiers() -> None:
    command = copy_command(BINARY, (blob("x"), SAS), (blob("y"), OTHER), HOW, folder=True, keep_tier=False)
    assert "--s2s-preserve-access-tier=false" in command.argv


def test_an_emulators_url() -> None:
    url = BlobContainer("acc", "data", "http://127.0.0.1:10000/acc").child("x")
    command = upload_command(BINARY, Path("/l"), url, SAS, HOW)
    assert command.argv[3] == "http://127.0.0.1:10000/acc/data/x/?sv=2024-11-04&sp=w&sig=SENTINEL"


def test_cap_and_talkative_log() -> None:
    command = upload_command(BINARY, Path("/l"), blob("x"), SAS, AzcopyTuning(4, 0.5, cap_mbps=2.5, chatty_log=True))
    assert command.argv[-5:] == (
        "--skip-version-check",
        "--cancel-from-stdin",
        "--block-size-mb=0.5",
        "--put-blob-size-mb=0.5",
        "--cap-mbps=2.5",
    )
    assert "--log-level=INFO" in command.argv


def test_what_is_shown_holds_no_signature() -> None:
    command = copy_command(BINARY, (blob("a b"), SAS), (blob("y"), OTHER), HOW, folder=True)
    assert "SENTINEL" not in command.display + repr(command) + str(command)
    assert command.display.startswith(
        "/bin/azcopy copy 'https://acc.blob.core.windows.net/data/a%20b/?***' "
        "'https://acc.blob.core.windows.net/data/y/?***' --from-to=BlobBlob "
    )


@pytest.mark.parametrize(
    ("processors", "cap", "connections", "block_mb"),
    [
        (1, None, 32, 8.0),
        (4, None, 32, 8.0),
        (8, None, 128, 8.0),
        (64, None, 300, 8.0),
        (2, 1000.0, 32, 8.0),
        (2, 100.0, 32, 8.0),
        (2, 4.0, 3, 8.0),
        (2, 1.0, 1, 4.0),
        (2, 0.1, 1, 0.5),
        (2, 0.001, 1, 0.25),
    ],
)
def test_a_tight_cap_means_fewer_connections_and_smaller_blocks(
    processors: int, cap: float | None, connections: int, block_mb: float
) -> None:
    assert tuning(processors, cap) == AzcopyTuning(connections, block_mb, cap)


@pytest.mark.parametrize(("cap", "block_mb"), [(1000.0, 8.0), (67.0, 4.0), (20.0, 2.0), (10.0, 1.0), (1.0, 0.0625)])
def test_no_block_of_a_download_is_more_than_its_cap_lets_through_in_a_second(cap: float, block_mb: float) -> None:
    chosen = tuning(2, cap, fetches=True).block_mb
    assert chosen == block_mb and chosen * (1 << 20) <= cap * 1e6 / 8


def places(inherited: dict[str, str], how: AzcopyTuning = HOW) -> dict[str, str]:
    return child_environment(inherited, Path("/s/home"), Path("/s/log"), Path("/s/plan"), how)


def test_environment() -> None:
    assert places(
        {
            "PATH": "/bin",
            "HOME": "/home/me",
            "HTTPS_PROXY": "http://proxy:8080",
            "AZCOPY_AUTO_LOGIN_TYPE": "MSI",
            "AZCOPY_CONCURRENCY_VALUE": "AUTO",
            "AZCOPY_SPA_CLIENT_SECRET": "secret",
            "AZURE_CLIENT_SECRET": "secret",
        }
    ) == {
        "PATH": "/bin",
        "HTTPS_PROXY": "http://proxy:8080",
        "HOME": "/s/home",
        "AZCOPY_LOG_LOCATION": "/s/log",
        "AZCOPY_JOB_PLAN_LOCATION": "/s/plan",
        "AZCOPY_DISABLE_SYSLOG": "true",
        "AZCOPY_CONCURRENCY_VALUE": "32",
        "AZCOPY_DOWNLOAD_TO_TEMP_PATH": "true",
    }


def test_a_number_of_connections_that_the_user_set_is_kept() -> None:
    assert places({"AZCOPY_CONCURRENCY_VALUE": "100"})["AZCOPY_CONCURRENCY_VALUE"] == "100"


def test_a_cap_decides_the_number_of_connections() -> None:
    capped = AzcopyTuning(3, 8.0, cap_mbps=4.0)
    assert places({"AZCOPY_CONCURRENCY_VALUE": "100"}, capped)["AZCOPY_CONCURRENCY_VALUE"] == "3"
