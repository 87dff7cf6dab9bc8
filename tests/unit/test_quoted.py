"""Output of other programs is cut between words."""

from __future__ import annotations

from blobsync.base.formatting import MOST_CHARS, quoted


def test_a_sentence_is_cut_between_two_words() -> None:
    assert quoted("one two,\n  three four", 18) == "one two, three ..."
    assert quoted("one two, three", 13) == "one two ..."
    assert quoted(" one\ttwo \n", 7) == "one two"
    assert quoted("word " * 100) == f"{'word ' * 59}..." and len(quoted("word " * 100)) <= MOST_CHARS


def test_one_endless_word_is_cut_nevertheless() -> None:
    assert quoted("x" * 400) == f"{'x' * (MOST_CHARS - 4)} ..."
