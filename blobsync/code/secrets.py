"""Finds credentials in files that are about to leave this machine, without ever repeating one.

A finding needs a form that little else has: the name of a key and a text of a key's length and alphabet
beside it, a SAS with its signature, the frame of a private key with a body. Long random texts alone
(checksums, test data, lock files) are no findings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Part of the key under which clean files are remembered: a new set of rules looks at every file again.
RULES_VERSION = 1

# Bytes; credentials are in small texts, and the look must not cost more than the packing.
MAX_LOOKED_AT = 8 * 1024 * 1024

# A zero byte this early (bytes) means that the file is no text.
_BINARY_LOOK = 8192

# The account key of every storage emulator: in Microsoft's documentation, and no secret.
_EMULATOR_KEY = b"Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_NOT_A_VALUE = re.compile(rb"^(?:\$\{.*|null|none|~|true|false|<.*|\*+|x+|\.+|changeme|todo)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that looks like a credential; ``what`` says which, never what it is."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class _Kind:
    # ``needles``: one of them is in every match; looking for plain bytes first is far faster than the pattern,
    # which is fast only where it begins with plain bytes itself.
    what: str
    needles: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


_KINDS = (
    _Kind(
        "a storage account key",
        (b"ccountKey", b"ccount_key", b"ACCOUNT_KEY", b"torage_key"),
        re.compile(
            rb"(?:[Aa]ccount_?[Kk]ey|ACCOUNT_KEY|[Ss]torage_key)"
            rb"[\"']?\s{0,4}[=:]\s{0,4}[\"']?([A-Za-z0-9+/]{86}==)"
        ),
    ),
    _Kind(
        "a shared access signature (SAS)",
        (b"sig=",),
        # 32 bytes in base64, percent-encoded or not; "sig=" alone is a common keyword argument.
        re.compile(rb"sig=(?<![A-Za-z0-9_-]sig=)((?:[A-Za-z0-9+/]|%2[BbFf]){43}(?:%3[Dd]|=))"),
    ),
    _Kind(
        "a private key",
        (b"PRIVATE KEY",),
        re.compile(
            rb"(-----BEGIN (?:[A-Z]+ )?PRIVATE KEY(?: BLOCK)?-----)"
            rb"(?:\\n|\s)+(?:[A-Za-z-]+: [^\r\n]*\s+)*[A-Za-z0-9+/=]{40}"
        ),
    ),
    _Kind(
        "a client secret of Microsoft Entra ID",
        (b"Q~",),
        re.compile(rb"(?<![A-Za-z0-9_~.-])([A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34})(?![A-Za-z0-9_~.-])"),
    ),
    _Kind(
        "a GitHub token",
        (b"ghp_", b"github_pat_"),
        re.compile(rb"(ghp_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59})(?![A-Za-z0-9])"),
    ),
    _Kind("a Hugging Face token", (b"hf_",), re.compile(rb"(hf_[A-Za-z0-9]{34})(?![A-Za-z0-9])")),
    _Kind(
        "an AWS secret key",
        (b"secret_access_key", b"SECRET_ACCESS_KEY"),
        re.compile(rb"(?i:secret_access_key)[\"']?\s{0,4}[=:]\s{0,4}[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"),
    ),
)

_NEEDLES = tuple((needle, kind) for kind in _KINDS for needle in kind.needles)

# What a configuration file of blobsync or ACT calls a secret, with any value at all.
_SETTING = re.compile(
    rb"^[ \t-]*[\"']?(?:account_key|sas_token|password|client_secret|access_token)[\"']?"
    rb"[ \t]*[:=][ \t]*[\"']?([^\s\"'#,}]+)",
    re.MULTILINE | re.IGNORECASE,
)


def scan(data: bytes, *, configuration: bool = False) -> tuple[Finding, ...]:
    """What looks like a credential in the first ``MAX_LOOKED_AT`` bytes of a file, in the order of the lines.

    In a ``configuration`` (a file below ``aux_data/``) every filled-in setting for a secret is a finding, too.
    """
    data = data[:MAX_LOOKED_AT]
    if b"\0" in data[:_BINARY_LOOK]:
        return ()
    found: dict[int, str] = {}
    for kind in {kind.what: kind for needle, kind in _NEEDLES if needle in data}.values():
        for match in kind.pattern.finditer(data):
            if match[1] != _EMULATOR_KEY:
                found.setdefault(_line(data, match.start(1)), kind.what)
    if configuration:
        for match in _SETTING.finditer(data):
            if not _NOT_A_VALUE.match(match[1]) and match[1] != _EMULATOR_KEY:
                found.setdefault(_line(data, match.start(1)), "a filled-in secret of a configuration file")
    return tuple(Finding(line, found[line]) for line in sorted(found))


def _line(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1
