"""Failures of one kind are reported together, and no failure is hidden by another."""

from __future__ import annotations

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.plan.failure_groups import again_sentence, grouped

BROKE = "the connection to acct.example broke (7 tries)"


def unreachable(path: str, message: str = BROKE) -> FileFailure:
    return FileFailure(path, FailureCode.STORAGE_UNREACHABLE, message, "run it again")


def test_an_error_of_many_files_is_printed_once_with_the_first_three() -> None:
    (group,) = grouped([unreachable(f"data/{number}") for number in range(283)])
    assert group.more == 280
    assert group == (BROKE, "run it again", ("data/0", "data/1", "data/2"), 283)


def test_errors_that_differ_only_in_file_and_blob_are_one_group() -> None:
    for said in ("{path}: {broke}", "the blob {blob} does not exist", "store/{blob} arrived with a different MD5"):
        messages = [said.format(path=f"data/v/f{n}.jpg", blob=f"voc/v/f{n}.jpg", broke=BROKE) for n in range(5)]
        (group,) = grouped([unreachable(f"data/v/f{n}.jpg", text) for n, text in enumerate(messages)])
        assert (group.total, "f0.jpg" in group.sentence) == (5, False)


def test_errors_that_differ_in_tries_are_one_group_and_in_size_two() -> None:
    tries = [unreachable("a", "it broke (7 tries)"), unreachable("b", "it broke (1,035 tries in 5 min)")]
    assert len(grouped(tries)) == 1
    sizes = [unreachable("a", "has 5 bytes, not 6"), unreachable("b", "has 7 bytes, not 6")]
    assert len(grouped(sizes)) == 2


def test_groups_keep_their_order_and_a_single_error_is_printed_whole() -> None:
    other = FileFailure("data/x", FailureCode.ACCESS_DENIED, BROKE)
    groups = grouped([unreachable("data/1"), other, unreachable("data/2"), unreachable("data/3")])
    assert [(group.sentence, group.paths, group.total) for group in groups] == [
        (BROKE, ("data/1", "data/2", "data/3"), 3),
        (f"data/x: {BROKE}", (), 1),
    ]


def test_a_file_name_of_one_letter_leaves_the_error_intact() -> None:
    assert grouped([unreachable("a"), unreachable("t")])[0].sentence == BROKE


def test_retried_files_are_named_with_the_reason() -> None:
    one = FileFailure("data/a", FailureCode.CHANGED_WHILE_READ, "data/a: the file changed while it was read")
    assert again_sentence([one], "direct") == (
        "data/a: the file changed while it was read; trying it again with the direct engine"
    )
    many = [one, *(unreachable(f"data/{number}") for number in range(1234))]
    assert again_sentence(many, "") == (
        "trying 1,235 files again. data/a: the file changed while it was read;"
        f" {BROKE}: data/0, data/1, data/2 and 1,231 more"
    )


def test_a_reason_does_not_begin_with_the_file() -> None:
    said = [unreachable(f"data/{name}.bin", f"/there/data/{name}.bin: Permission denied") for name in "ab"]
    assert grouped(said)[0].sentence == "Permission denied"
