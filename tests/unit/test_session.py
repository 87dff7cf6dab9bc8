"""The global options, before and after the command word."""

from __future__ import annotations

from typing import Any

import pytest

from blobsync.base.errors import UsageError
from blobsync.cli.session import Session

_NOTHING: dict[str, Any] = {
    "cluster": None,
    "from_cluster": None,
    "param": None,
    "num_gpu": None,
    "json": False,
    "verbose": 0,
    "quiet": False,
}


@pytest.mark.parametrize(
    ("name", "before", "after", "means"),
    [
        ("num_gpu", None, 0, 0),
        ("num_gpu", 8, 0, 0),
        ("num_gpu", 8, None, 8),
        ("num_gpu", 0, None, 0),
        ("cluster", "eu", "we3v32", "we3v32"),
        ("cluster", "eu", None, "eu"),
        ("param", "{a: 1}", "", ""),
        ("json", True, False, True),
        ("json", False, True, True),
        ("quiet", True, False, True),
        ("verbose", 2, 0, 2),
        ("verbose", 0, 2, 2),
        ("verbose", 2, 1, 1),
    ],
)
def test_what_is_given_after_the_word_wins(name: str, before: object, after: object, means: object) -> None:
    session = Session()
    session.merge({**_NOTHING, name: before})
    session.merge({**_NOTHING, name: after})
    assert getattr(session, name) == means


def test_no_gpu_is_an_override_like_any_other_number() -> None:
    session = Session()
    session.merge({**_NOTHING, "num_gpu": 0})
    assert session.overrides() == {"num_gpu": 0}


@pytest.mark.parametrize("name", ["cluster", "from_cluster"])
@pytest.mark.parametrize("given", ["", "  "])
def test_an_empty_name_is_not_the_default_cluster(name: str, given: str) -> None:
    with pytest.raises(UsageError, match="missing cluster name"):
        Session().merge({**_NOTHING, name: given})
