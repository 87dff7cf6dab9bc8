"""Finds credentials in files before they leave this machine, without ever repeating one.

A finding requires a distinctive form: the name of a key and a text of a key's length and alphabet
beside it, a SAS with its signature, the frame of a private key with a body, a vendor's token. Long random texts alone
(checksums, test data, lock files) are not findings. Files whose names say that they hold secrets are no code at all:
only a pattern that names one includes it (``!.env.local`` in ``.blobsyncignore``).

The rules are our own. ``detect-secrets`` 1.5.0 with 24 of its rules (without those of entropy and of key names) took
0.22 s to import and 5.0 s for the 159 files (1.06 MB) of this package, where these took 0.03 s; 0.2 s were to
spare. Each rule begins at a plain text that stands in every match and looks a bounded way from there, so that time is
linear in the size of a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice, pairwise

from blobsync.base.records import dataclass

# Part of the key under which clean files are remembered: a new set of rules looks at every file again.
RULES_VERSION = 2

# In bytes. Credentials are in small texts, and scanning must not take longer than packing.
MAX_LOOKED_AT = 8 * 1024 * 1024

# Places in one file where a rule may start; code has a few, a malicious file could have millions.
_MAX_PLACES = 20_000
# Findings of one file; one is enough to leave it out.
_MAX_FINDINGS = 100

# A zero byte this early (bytes) means that the file is no text.
_BINARY_LOOK = 8192

# The account key of every storage emulator: in Microsoft's documentation, and no secret.
_EMULATOR_KEY = b"Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_NOT_A_VALUE = re.compile(
    rb"\$\{?\w+\}?|null|none|~|true|false|<.*|\*+|x+|\.+|changeme|todo|[\[{].*|[|>][+-]?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class PossibleSecret:
    """Something that looks like a credential; ``what`` names its kind, never its value."""

    line: int
    what: str


def _kind(what: str, pattern: bytes, *needles: bytes) -> tuple[str, re.Pattern[bytes], tuple[bytes, ...]]:
    """``needles`` are in small letters; the pattern is tried where one of them begins, and nowhere else."""
    return what, re.compile(pattern, re.DOTALL), needles


# What may stand between a name and its value, and how JSON and URLs write "=".
_IS = rb"(?:\\?[\"'])?[ \t]{0,4}(?:[=:]|%3[Dd]|\\u003[dD])[ \t]{0,4}(?:\\?[\"'])?"
_EQUALS = rb"(?:=|%(?:25)?3[Dd]|\\u003[dD]|&#61;|&#x3[dD];)"
_ENDS = rb"(?![A-Za-z0-9])"

_KINDS = (
    _kind(
        "a storage account key",
        rb"[a-zA-Z]{6,7}[_-]?[kK][eE][yY]"
        + _IS
        + rb"((?:[A-Za-z0-9+/]|%2[BbFf]|\\u002[bBfF]|\\/){86}"
        + _EQUALS
        + rb"{2})",
        *(b"accountkey", b"account_key", b"account-key", b"storagekey", b"storage_key", b"storage-key"),
        *(b"accesskey", b"access_key", b"access-key", b"sharedkey", b"shared_key"),
    ),
    _kind(
        "a shared access signature (SAS)",
        # 32 bytes in base64, however it is written; "sig=" alone is a common keyword argument.
        rb"[sS][iI][gG]" + _EQUALS + rb"((?:[A-Za-z0-9+/]|%(?:25)?2[BbFf]|\\u002[bBfF]|&#4[37];){43}" + _EQUALS + rb")",
        *(b"sig=", b"sig%3d", b"sig%253d", b"sig\\u003d", b"sig&#61;", b"sig&#x3d;"),
    ),
    _kind(
        "a client secret of Microsoft Entra ID",
        rb"Q~([A-Za-z0-9_~.-]{31,34})(?![A-Za-z0-9_~.-])",
        b"q~",
    ),
    _kind("a GitHub token", rb"(gh[pousr]_[A-Za-z0-9]{36})" + _ENDS, b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"),
    _kind("a GitHub token", rb"(github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59})" + _ENDS, b"github_pat_"),
    _kind("a GitLab token", rb"(glpat-[A-Za-z0-9_-]{20,64})" + _ENDS, b"glpat-"),
    _kind("a Hugging Face token", rb"(hf_[A-Za-z0-9]{34})" + _ENDS, b"hf_"),
    _kind(
        "an AWS secret key",
        rb"[a-zA-Z]{6}[_-]?[a-zA-Z]{6}[_-]?[a-zA-Z]{3}" + _IS + rb"([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
        *(b"secret_access_key", b"secretaccesskey", b"secret-access-key"),
    ),
    _kind("a Slack token", rb"(xox[abeoprs]-[A-Za-z0-9-]{20,200})" + _ENDS, b"xox"),
    _kind(
        "a Slack webhook",
        rb"hooks\.slack\.com/(services/T[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{20,30})",
        b"hooks.slack.com/",
    ),
    _kind("a Google API key", rb"(AIza[A-Za-z0-9_-]{35})(?![A-Za-z0-9_-])", b"aiza"),
    _kind("an Anthropic key", rb"(sk-ant-[A-Za-z0-9_-]{24,200})" + _ENDS, b"sk-ant-"),
    _kind("an OpenAI key", rb"(sk-(?:proj-|svcacct-)?[A-Za-z0-9_-]{20,100}T3BlbkFJ[A-Za-z0-9_-]{20,100})", b"sk-"),
    _kind("a Stripe key", rb"([sr]k_live_[A-Za-z0-9]{24,120})" + _ENDS, b"sk_live_", b"rk_live_"),
    _kind("a SendGrid key", rb"(SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43})" + _ENDS, b"sg."),
    _kind("an npm token", rb"(npm_[A-Za-z0-9]{36})" + _ENDS, b"npm_"),
    _kind("a PyPI token", rb"(pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,400})", b"pypi-ageichlwas5vcmc"),
    _kind(
        "a Weights & Biases key",
        rb"[a-zA-Z]{5}[_-][a-zA-Z]{3}[_-]?[a-zA-Z]{3}" + _IS + rb"([0-9a-f]{40})" + _ENDS,
        *(b"wandb_api_key", b"wandb-api-key"),
    ),
)
_ENTRA_BEFORE = re.compile(rb"(?:^|[^A-Za-z0-9_~.-])[A-Za-z0-9_~.-]{3}[78]\Z", re.DOTALL)

_FRAME = re.compile(rb"-----BEGIN (?:[A-Z]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
# Bytes after the frame's first line in which the body has to begin, and the header lines that may come first.
_FRAME_LOOK, _FRAME_HEADERS = 2048, 16
_BODY = re.compile(rb"[A-Za-z0-9+/=]{40}")
_HEADER = re.compile(rb"[A-Za-z][A-Za-z-]{0,40}: ")

# A setting in a configuration file: a name and a value on one line, as YAML, JSON and INI have them.
_MAX_LINE = 4096
_SETTING = re.compile(
    rb"(?<![A-Za-z0-9_.$-])([A-Za-z_][A-Za-z0-9_.$-]{1,63})[\"']?[ \t]{0,8}[:=]"
    rb"[ \t]{0,8}([\"']?)([^\s\"'#,{}\[\]][^\s\"'#,}\]]{0,255})"
)
_WORDS_OF_A_NAME = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    b"password passwd pwd passphrase secret token apikey accountkey storagekey accesskey privatekey credential "
    b"credentials pat sas".split()
)
# Before "key": what makes it one that opens something.
_KEY_WORDS = frozenset((b"account", b"storage", b"access", b"api", b"private", b"shared", b"master", b"encryption"))
_NOT_SECRET = frozenset((b"env", b"file", b"path", b"name", b"expiry", b"url", b"type", b"rights", b"seconds"))


def scan(data: bytes, *, configuration: bool = False) -> tuple[PossibleSecret, ...]:
    """Find what looks like a credential in the first ``MAX_LOOKED_AT`` bytes of a file, in line order.

    In a ``configuration`` (a file below ``aux_data/``) every filled-in setting for a secret is a finding, too.
    """
    data = _as_text(data[:MAX_LOOKED_AT])
    found: dict[int, str] = {}
    for at, what in islice(_by_form(data), _MAX_FINDINGS):
        found.setdefault(data.count(b"\n", 0, at) + 1, what)
    if configuration:
        for line in islice(_settings(data), _MAX_FINDINGS):
            found.setdefault(line, "a filled-in secret of a configuration file")
    return tuple(PossibleSecret(line, found[line]) for line in sorted(found))


def _by_form(data: bytes) -> Iterator[tuple[int, str]]:
    small = data.lower()
    for what, pattern, needles in _KINDS:
        for needle in needles:
            for at in _places(small, needle):
                match = pattern.match(data, at)
                if match and match[1] != _EMULATOR_KEY and _stands_apart(data, at, needle):
                    yield at, what
    for at in _places(small, b"-----begin "):
        if _is_private_key(data, at):
            yield at, "a private key"


def _as_text(data: bytes) -> bytes:
    """Convert to UTF-8; empty if it is no text. Windows' editors write UTF-16, with or without a BOM."""
    for encoding, mark in (("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")):
        if data.startswith(mark):
            return data[2:].decode(encoding, "ignore").encode("utf-8", "ignore")
    look = data[:_BINARY_LOOK]
    if b"\0" not in look:
        return data
    for encoding, zeros, others in (("utf-16-le", look[1::2], look[::2]), ("utf-16-be", look[::2], look[1::2])):
        if zeros.count(0) > 0.9 * len(zeros) and others.count(0) == 0:
            return data.decode(encoding, "ignore").encode("utf-8", "ignore")
    return b""


def _places(small: bytes, needle: bytes) -> Iterator[int]:
    at = small.find(needle)
    for _ in range(_MAX_PLACES):
        if at < 0:
            return
        yield at
        at = small.find(needle, at + 1)


def _stands_apart(data: bytes, at: int, needle: bytes) -> bool:
    """Whether the match is a whole word, not the end of a longer one."""
    if needle == b"q~":
        return _ENTRA_BEFORE.search(data[max(0, at - 5) : at]) is not None
    if needle.startswith(b"sig"):
        before = data[max(0, at - 6) : at].lower()
        # "&sig=" may be "%26sig%3D" or "\u0026sig\u003d".
        return before.endswith((b"%26", b"%3f", b"\\u0026", b"amp;")) or not before[-1:].isalnum()
    if needle.endswith(b"key"):
        return True
    return not (data[at - 1 : at].isalnum() if at else False)


def _is_private_key(data: bytes, at: int) -> bool:
    frame = _FRAME.match(data, at)
    if frame is None:
        return False
    # In JSON and in shell texts the ends of lines are written out.
    after = data[frame.end() : frame.end() + _FRAME_LOOK].replace(b"\\r", b"").replace(b"\\n", b"\n")
    lines = [line.strip() for line in after.split(b"\n")]
    if lines[0]:
        return False
    for line in [line for line in lines[1:] if line][: _FRAME_HEADERS + 1]:
        if not _HEADER.match(line):
            return _BODY.match(line) is not None
    return False


def _settings(data: bytes) -> Iterator[int]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        for match in _SETTING.finditer(line[:_MAX_LINE]):
            name, quoted, value = match[1], match[2], match[3]
            # "token: 512" is a number of tokens, but a password may be a number.
            counts = bool(quoted) or b"pass" in name.lower()
            if _is_secret_name(name) and _is_value(value, number_counts=counts):
                yield number
                break


def _is_secret_name(name: bytes) -> bool:
    words = [word.lower() for word in _WORDS_OF_A_NAME.findall(name)]
    if not words or words[-1] in _NOT_SECRET:
        return False
    if any(word in _SECRET_WORDS for word in words):
        return True
    return any(key == b"key" and before in _KEY_WORDS for before, key in pairwise(words))


def _is_value(value: bytes, *, number_counts: bool) -> bool:
    if value.isdigit() and not number_counts:
        return False
    return not _NOT_A_VALUE.fullmatch(value) and value != _EMULATOR_KEY


# Bytes of a file that is secret only if it contains a token.
LOOKED_AT = 65_536

_FOLDERS = {
    ".aws": "the AWS command line",
    ".azure": "the Azure command line",
    ".docker": "docker",
    ".gcloud": "the Google command line",
    ".gnupg": "GnuPG",
    ".kaggle": "Kaggle",
    ".kube": "kubectl",
    ".ssh": "ssh",
}
_PASSWORDS = "a file of passwords or tokens"
_FILES = (
    *(".boto", ".databrickscfg", ".dockercfg", ".git-credentials", ".htpasswd", ".my.cnf", ".netrc", "_netrc"),
    *(".pgpass", ".s3cfg", ".vault-token", "kubeconfig", "rclone.conf"),
)
_ENDINGS = {
    ".env": "a file of environment variables",
    ".key": "a private key",
    ".pem": "a private key or a certificate",
    ".ppk": "a private key",
    ".p12": "a private key",
    ".pfx": "a private key",
    ".jks": "a key store",
    ".keystore": "a key store",
    ".kdbx": "a password store",
}
# Examples that list the needed variables.
_EXAMPLES = ("example", "sample", "template", "dist", "defaults")
_SSH_KEY = re.compile(r"id_(?:rsa|dsa|ecdsa|ed25519|xmss)(?:_sk)?(?:[._-].{0,200})?")
# Settings of package managers, which contain a token only if somebody logged in.
_WITH_TOKENS = {
    ".npmrc": re.compile(rb"_auth|_password", re.IGNORECASE),
    ".yarnrc.yml": re.compile(rb"npmAuth", re.IGNORECASE),
    ".pypirc": re.compile(rb"password", re.IGNORECASE),
    "pip.conf": re.compile(rb"://[^/\s@]{1,200}@"),
}


def why_secret(name: str, *, folder: bool, read: Callable[[], bytes]) -> str | None:
    """Why a file or folder of this name is secret; None if its name does not mark it as secret.

    ``read`` gives the first ``LOOKED_AT`` bytes of it; it is called for few names.
    """
    small = name.lower()
    if folder:
        return f"credentials of {_FOLDERS[small]}" if small in _FOLDERS else None
    if small in _FILES:
        return _PASSWORDS
    if small.startswith(".env") and small.rpartition(".")[2] not in _EXAMPLES:
        return _ENDINGS[".env"]
    if _SSH_KEY.fullmatch(small) and not small.endswith(".pub"):
        return "a private key"
    if small in _WITH_TOKENS:
        return _PASSWORDS if _WITH_TOKENS[small].search(read()) else None
    return next((what for ending, what in _ENDINGS.items() if small.endswith(ending)), None)


def names_it(pattern: str) -> bool:
    """Whether a pattern that includes something (``!...``) names it, rather than matching everything."""
    last = pattern.removeprefix("!").rstrip("/").rpartition("/")[2]
    return bool(last.strip("*?"))
