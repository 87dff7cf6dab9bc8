"""Redaction of secrets. All secrets here are made up."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import logging
import random
import string
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest

from blobsync.base.errors import BlobsyncError
from blobsync.base.redaction import (
    HIDDEN,
    SasToken,
    Secret,
    redact,
    redact_answer,
    redact_each,
    redact_tree,
    redact_word,
    register_secret,
    register_url,
)
from blobsync.cli.output import Console, Result

# With every sign that URLs, JSON and HTML write in ways of their own.
HELD = "q7+Zk/9w=8&x<Y>'v\"\\u~é"
KEY = base64.b64encode(hashlib.sha512(b"held").digest()).decode()
SIGNATURE = base64.b64encode(hashlib.sha256(b"held, too").digest()).decode()


@pytest.fixture(autouse=True)
def held() -> None:
    Secret(HELD)
    Secret(KEY)
    SasToken.parse(f"sv=1&sig={quote(SIGNATURE, safe='')}&sp=r")


def _go(text: str) -> str:
    """JSON as Go writes it."""
    return json.dumps(text)[1:-1].replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "url": lambda text: quote(text, safe=""),
    "url, small": lambda text: "".join(
        f"%{byte:02x}" if byte > 127 or chr(byte) in "+/=&%" else chr(byte) for byte in text.encode()
    ),
    "url, with slashes": lambda text: quote(text),
    "url, twice": lambda text: quote(quote(text, safe=""), safe=""),
    "json": lambda text: json.dumps(text)[1:-1],
    "json of go": _go,
    "json, all signs": lambda text: "".join(c if c.isalnum() and c.isascii() else f"\\u{ord(c):04X}" for c in text),
    "html": html.escape,
    "html, numbers": lambda text: "".join(c if c.isalnum() and c.isascii() else f"&#{ord(c)};" for c in text),
    "html, hexadecimal": lambda text: "".join(c if c.isalnum() and c.isascii() else f"&#x{ord(c):X};" for c in text),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 of more": lambda text: base64.b64encode(f"a{text} and more".encode()).decode(),
    "base64 of still more": lambda text: base64.b64encode(f"ab{text}".encode()).decode(),
    "base64 of a pair": lambda text: base64.urlsafe_b64encode(f"user:{text}".encode()).decode(),
}


@pytest.mark.parametrize("secret", [HELD, KEY, SIGNATURE], ids=["a password", "a key", "a signature"])
@pytest.mark.parametrize("form", FORMS)
def test_what_this_process_holds_is_taken_out_in_every_form(form: str, secret: str) -> None:
    written = FORMS[form](secret)
    for take_out in (redact, redact_answer):
        left = take_out(f"before {written} after")
        assert left.startswith("before ") and left.endswith(" after") and "***" in left
        # What base64 leaves at the ends are bits of the neighbours.
        middle = written[4:-4]
        assert middle not in left and middle[: len(middle) // 2] not in left


@pytest.mark.parametrize(
    "text",
    [
        "https://a/c?sv=1&sig=SENTINEL%3D&se=2",
        "https%3A%2F%2Fa%2Fc%3Fsv%3D1%26sig%3DSENTINEL%253D%26se%3D2",
        "a?sv=1\\u0026sig\\u003dSENTINEL\\u003d\\u0026se",
        "a?sv=1&amp;sig&#61;SENTINEL&#61;&amp;se",
        "a?sv=1&amp;sig&#x3D;SENTINEL&amp;se",
        "https%253A%252F%252Fa%253Fsv%253D1%2526sig%253DSENTINEL%25253D",
        "json in json: \\\\u0026sig\\\\u003dSENTINEL\\\\u002bSENTINEL",
        "a slash in JSON: sig=AAAA\\/SENTINEL",
        "in a log of C: sig\\x3dSENTINEL\\x2bSENTINEL",
        "SIG%3DSENTINEL",
        "SIG\\U003DSENTINEL",
        "SIG=SENTINEL",
        "Signature=SENTINEL",
        "Signature%3dSENTINEL",
        "Signature: SENTINELSENTINELSENTINEL",
        "sig = SENTINELSENTINELSENTINEL",
        '"signature": "SENTINELSENTINELSENTINEL"',
        "authorization: Bearer SENTINEL.SENTINEL.SENTINEL",
        "AUTHORIZATION: BEARER SENTINEL.SENTINEL.SENTINEL",
        "Authorization: SharedKey acct:SENTINELSENTINEL=",
        "AccountKey=SENTINELSENTINEL;EndpointSuffix",
        "AccountKey=SENTINEL==;",
        "'account_key': 'SENTINELSENTINEL=='",
        "'sig=SENTINEL'",
        "SENTINEL" * 10 + "abcdef==",
        "storage_key: 'SENTINELSENTINEL'",
        "STORAGEKEY=SENTINELSENTINEL",
        "&quot;accountKey&quot;:&quot;SENTINELSENTINEL&quot;",
        "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJTRU5USU5FTCJ9.SENTINELSENTINEL",
    ],
)
def test_what_others_tell_is_taken_out_by_its_form(text: str) -> None:
    assert "SENTINEL" not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "a.yaml: holds account_key and sas_token and is readable by others",
        "a.yaml:3: account_key: is not base64: copy the whole key",
        "the signature: it is wrong",
        "design=good, a key: value, bearer of bad news",
        "data/sigma=0.5/design.txt",
    ],
)
def test_words_are_left_alone(text: str) -> None:
    assert redact(text) == text == redact_answer(text)


def test_a_name_is_left_alone_unless_it_is_a_signature() -> None:
    assert redact_answer("data/sig=3/a.txt") == "data/sig=3/a.txt"
    assert "SENTINEL" not in redact_answer("data/x?sig=" + "SENTINEL" * 5 + "%3D")


@pytest.mark.parametrize("before", ["Signature: ", "signature = '", '{"sig": "', '{\\"sig\\": \\"', "sig%253D"])
def test_a_whole_signature_is_taken_out_of_answers_as_well(before: str) -> None:
    signature = "SENTINEL" * 5 + "+/A="
    assert "SENTINEL" not in redact_answer(before + signature)


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("https://a.example/c/b?sv=1&sig=x", "https://a.example/c/b?***"),
        ("http://127.0.0.1:1/a/c?anything", "http://127.0.0.1:1/a/c?***"),
        ("https://a.example/c/b", "https://a.example/c/b"),
        ("data/what?.txt", "data/what?.txt"),
    ],
)
def test_of_an_address_on_a_command_line_nothing_after_its_question_mark_is_shown(word: str, shown: str) -> None:
    assert redact_word(word) == shown


def test_what_opens_a_url_is_a_secret_from_then_on() -> None:
    register_url("https://me:pass%2Fword-of-mine@files.example/a/b?token=of-a-month&more=kept")
    said = redact("me at https://files.example/a/b, pass/word-of-mine, pass%2Fword-of-mine, token=of-a-month&more=kept")
    assert said == f"me at https://files.example/a/b, {HIDDEN}, {HIDDEN}, {HIDDEN}"
    register_url("https://files.example/a/b")
    register_url("s3://plain-bucket/prefix@of-one")
    assert redact("https://files.example/a/b prefix@of-one") == "https://files.example/a/b prefix@of-one"


def test_a_short_secret_counts_as_a_whole_word_and_a_very_short_one_not_at_all() -> None:
    register_secret("tiger")
    register_secret("abcd")
    assert redact("password tiger, tigers abcd") == "password ***, tigers abcd"


@pytest.mark.parametrize("turned", [False, True], ids=["in this order", "in the other"])
@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ("walnut-tree-1", "walnut-tree-1-and-more", "walnut-tree-1-and-more"),
        ("of-the-hazel", "hazel-of-the", "hazel-of-the-hazel"),
        ("elm-in-the-middle", "in-the-m", "elm-in-the-middle"),
        ("side-by-side", "one-by-one", "side-by-sideone-by-one"),
    ],
    ids=["a beginning", "an end and a beginning", "a middle", "neighbours"],
)
def test_secrets_that_overlap_are_hidden_whole(one: str, other: str, text: str, turned: bool) -> None:
    for secret in (other, one) if turned else (one, other):
        register_secret(secret)
    assert redact(f"<{text}>") == "<***>"


def test_a_secret_that_overlaps_itself_is_hidden_whole() -> None:
    register_secret("pine-pine-pine-")
    assert redact("<" + "pine-" * 10 + "> <pine-pine->") == "<***> <pine-pine->"


@pytest.mark.parametrize("length", [1023, 1024, 1025, 1500, 2048, 5000])
def test_of_a_long_secret_no_part_stays(length: int) -> None:
    secret = "".join(random.Random(length).choices(string.ascii_letters, k=length))
    register_secret(secret)
    assert redact(f"<{secret}>") == "<***>" == redact_answer(f"<{secret}>")


@pytest.mark.parametrize(
    "text",
    [
        "account_key: {}RESTRESTRESTREST",
        "https://a/c?sig=RESTRESTREST{}RESTRESTRESTREST&x",
        "Bearer REST{}RESTRESTREST",
    ],
)
def test_what_looks_like_a_secret_is_hidden_whole_although_a_part_of_it_is_held(text: str) -> None:
    register_secret("maple+and=birch")
    assert "REST" not in redact(text.format("maple+and=birch"))


def test_numbers_and_shape_of_a_json_value_stay() -> None:
    register_secret("1234567890")
    value = {"size": 1234567890, HELD: ["x", (f"a {KEY}", None, True)], "b": {"c": "1234567890"}}
    assert redact_tree(value) == {"size": 1234567890, "***": ["x", ["a ***", None, True]], "b": {"c": "***"}}


def test_every_way_out_of_the_console_is_covered(caplog: pytest.LogCaptureFixture) -> None:
    for as_json in (False, True):
        out, err = io.StringIO(), io.StringIO()
        console = Console([f"--x={KEY}"], as_json=as_json, out=out, err=err)
        console.show(Result({"a": KEY, KEY: [quote(KEY, safe="")]}, [f"line {KEY}"]))
        console.fail(BlobsyncError(f"message {KEY}", hint=f"hint {KEY}", path=f"path {KEY}"))
        console.say(f"say {KEY}")
        told = out.getvalue() + err.getvalue()
        assert "***" in told and KEY not in told and quote(KEY, safe="") not in told


def test_a_secret_that_was_asked_for_is_printed() -> None:
    out = io.StringIO()
    Console(out=out).show(Result({}, [f"https://a/c?sig={quote(SIGNATURE, safe='')}"], reveals=True))
    assert quote(SIGNATURE, safe="") in out.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "sig=" * 50_000,
        "A" * 200_000,
        "eyJ" * 70_000,
        "accountkey" * 20_000 + " " * 50_000,
        "SharedKey " + "a" * 200_000,
        "Bearer " * 30_000,
        HELD[:-1] * 10_000,
        "&#" * 100_000,
        "\\" * 200_000 + "sig",
        "sig " + " " * 100_000 + "=",
        "sig%2525" * 30_000,
    ],
    ids=lambda text: text[:12],
)
def test_time_is_linear(text: str) -> None:
    # Not the time that other programs take.
    started = time.thread_time()
    redact(text)
    redact_answer(text)
    assert time.thread_time() - started < 3


def test_a_traceback_in_a_log_shows_no_secret() -> None:
    from blobsync.cli.output import start_logging

    logger = logging.getLogger("blobsync")
    before, level = list(logger.handlers), logger.level
    start_logging(1)
    handler = next(each for each in logger.handlers if each not in before)
    try:
        try:
            raise ValueError(KEY)
        except ValueError:
            record = logger.makeRecord("blobsync", logging.INFO, "f", 1, "x %s", (KEY,), __import__("sys").exc_info())
        text = handler.format(record)
        assert "ValueError" in text and KEY not in text
    finally:
        for name in ("blobsync", "urllib3"):
            logging.getLogger(name).removeHandler(handler)
        logger.setLevel(level)


@pytest.mark.parametrize("at", [0, 63, 64, 150])
@pytest.mark.parametrize("harmful", ["sig=" + "A1b2C3d4" * 5 + "A1%3D", "held-by-this-process-0001"])
def test_each_of_many_values_is_redacted_wherever_the_secret_is(at: int, harmful: str) -> None:
    register_secret("held-by-this-process-0001")
    values = [{"path": f"f{number}", "more": ["x", number]} for number in range(200)]
    values[at] = {"path": "f", "more": [f"a {harmful}", at]}
    found = [value for some in redact_each(values) for value in some]
    assert harmful not in str(found)
    assert found == [redact_tree(value) for value in values]
    assert [value for number, value in enumerate(found) if number != at] == values[:at] + values[at + 1 :]
