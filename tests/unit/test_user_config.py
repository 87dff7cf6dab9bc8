"""The user's own configuration file: its keys, and when it is ignored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blobsync.base.errors import ConfigError
from blobsync.base.user_folders import config_home
from blobsync.config.known_keys import USER
from blobsync.config.user_config import UserConfig, load_user_config, user_config_file

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": "/nonexistent", "XDG_CONFIG_HOME": str(tmp_path)}


def write(environ: dict[str, str], text: str, *, mode: int = 0o600, folder: int = 0o700) -> Path:
    file = user_config_file(environ)
    file.parent.mkdir(mode=folder)
    file.parent.chmod(folder)
    file.write_text(text)
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, "/h/.config/blobsync"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}, "/c/blobsync"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "relative"}, "/h/.config/blobsync"),
    ],
)
def test_the_file_is_where_the_desktop_specification_says(environ: dict[str, str], expected: str) -> None:
    assert config_home(environ) == Path(expected)


def test_without_a_file_only_the_environment_counts(environ: dict[str, str]) -> None:
    assert load_user_config(environ) == UserConfig()
    environ |= {"BLOBSYNC_TRUSTED_HOSTS": "a.example, b.example", "BLOBSYNC_ALLOWED_VARIABLES": "MY_SAS OTHER"}
    assert load_user_config(environ) == UserConfig(("a.example", "b.example"), ("MY_SAS", "OTHER"))


def test_file_and_environment_are_added_up(environ: dict[str, str]) -> None:
    write(environ, "trusted_hosts: [b.example]\nallowed_variables: MY_SAS\n")
    environ["BLOBSYNC_TRUSTED_HOSTS"] = "a.example"
    assert load_user_config(environ) == UserConfig(("a.example", "b.example"), ("MY_SAS",))


def test_an_unknown_key_is_a_warning_and_a_wrong_type_an_error(environ: dict[str, str]) -> None:
    file = write(environ, "trusted_host: [b.example]\n")
    assert load_user_config(environ).warnings == (
        f"{file}:1: trusted_host: unknown key, ignored; did you mean 'trusted_hosts'?",
    )
    file.write_text("trusted_hosts: {a: b}\n")
    with pytest.raises(ConfigError, match="must be a list of texts"):
        load_user_config(environ)


@pytest.mark.parametrize(("mode", "folder"), [(0o620, 0o700), (0o602, 0o700), (0o600, 0o770), (0o600, 0o777)])
def test_a_file_that_others_can_write_or_replace_is_refused(environ: dict[str, str], mode: int, folder: int) -> None:
    write(environ, "trusted_hosts: [evil.example]\n", mode=mode, folder=folder)
    with pytest.raises(ConfigError, match="is writable by other users"):
        load_user_config(environ)


def test_a_link_is_followed_and_its_target_judged(environ: dict[str, str], tmp_path: Path) -> None:
    file = write(environ, "")
    file.unlink()
    target = tmp_path / "dotfiles" / "blobsync.yaml"
    target.parent.mkdir(mode=0o755)
    target.write_text("trusted_hosts: [b.example]\n")
    target.chmod(0o644)
    file.symlink_to(target)
    assert load_user_config(environ).trusted_hosts == ("b.example",)
    target.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="is writable by other users"):
        load_user_config(environ)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(environ: dict[str, str]) -> None:
    file = write(environ, "trusted_hosts: [evil.example]\n")
    os.chown(file, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to another user"):
        load_user_config(environ)


def test_a_fifo_does_not_hang(environ: dict[str, str]) -> None:
    file = write(environ, "")
    file.unlink()
    os.mkfifo(file, 0o600)
    assert load_user_config(environ) == UserConfig()


@pytest.mark.parametrize("key", USER)
def test_every_key_is_documented(key: str) -> None:
    assert f"| `{key}` |" in DOCS.read_text()
