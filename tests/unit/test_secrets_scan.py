"""Texts that count as credentials, and texts that do not. All keys here are made up."""

from __future__ import annotations

import base64
import hashlib
import time

import pytest

from blobsync.code.secrets import MAX_LOOKED_AT, scan

KEY = base64.b64encode(hashlib.sha512(b"no key").digest()).decode()
SIGNATURE = base64.b64encode(hashlib.sha256(b"no signature").digest()).decode()
ENCODED = SIGNATURE.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
# In two parts, so that this file is no finding itself.
BEGIN = "-----BEGIN " + "RSA PRIVATE KEY-----"

FOUND = {
    "connection string": (f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY};", "a storage account key"),
    "yaml": (f"account_key: {KEY}", "a storage account key"),
    "json": (f'{{"accountKey": "{KEY}"}}', "a storage account key"),
    "environment": (f"export AZURE_STORAGE_ACCOUNT_KEY='{KEY}'", "a storage account key"),
    "sas url": (f"https://a.blob.core.windows.net/c?sv=2021&sig={ENCODED}", "a shared access signature (SAS)"),
    "sas token": (f"sas_token: 'sig={SIGNATURE}&se=2030'", "a shared access signature (SAS)"),
    "private key": (f"{BEGIN}\n{BODY}\n", "a private key"),
    "private key in json": (f'"key": "{BEGIN}\\n{BODY}\\n"', "a private key"),
    "encrypted private key": (f"{BEGIN}\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,00\n\n{BODY}", "a private key"),
    "github": ("token = 'ghp_" + "a1B2" * 9 + "'", "a GitHub token"),
    "hugging face": ("HF_TOKEN=hf_" + "aB" * 17, "a Hugging Face token"),
    "entra": ("secret: abc8Q~" + "x" * 34, "a client secret of Microsoft Entra ID"),
    "aws": ("aws_secret_access_key = " + "aB3/" * 10, "an AWS secret key"),
}


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND.keys())
def test_found(case: tuple[str, str]) -> None:
    text, what = case
    assert [(one.line, one.what) for one in scan(f"first\n{text}\nlast\n".encode())] == [(2, what)]


CLEAN = {
    "the emulator's key": "AccountKey="
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "a checksum": f'"integrity": "sha512-{KEY}"',
    "a variable": "account_key: ${MY_KEY}",
    "code about keys": "account_key = settings['account_key']\nsig = sign(text)\nreturn f'{url}?sig={sig}'",
    "a keyword argument": "plot(sig=0.5, key=1)",
    "a header alone": f"if line == '{BEGIN}':",
    "a placeholder": "AccountKey=<your account key>==",
    "a public key": f"-----BEGIN PUBLIC KEY-----\n{BODY}\n",
}


@pytest.mark.parametrize("text", CLEAN.values(), ids=CLEAN.keys())
def test_not_found(text: str) -> None:
    assert scan(text.encode()) == ()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("account_key: c2hvcnQ=\n", [1]),
        ("docker:\n  password: hunter2\n", [2]),
        ("- sas_token: '?sv=1'\n", [1]),
        ("account_key: ${KEY}\nsas_token: null\npassword:\n", []),
        ("account_name: x\ncontainer_name: y\n", []),
    ],
)
def test_in_a_configuration_every_filled_in_secret_counts(text: str, lines: list[int]) -> None:
    assert [one.line for one in scan(text.encode(), configuration=True)] == lines
    assert scan(text.encode()) == ()


def test_a_binary_file_is_not_looked_at() -> None:
    assert scan(b"\0" + FOUND["yaml"][0].encode()) == ()


def test_the_look_is_bounded() -> None:
    assert scan(b" " * MAX_LOOKED_AT + FOUND["yaml"][0].encode()) == ()


def test_a_finding_does_not_hold_the_secret() -> None:
    assert KEY not in repr(scan(f"account_key: {KEY}".encode()))


PLAIN_ENCODED = KEY.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
MORE_FOUND = {
    "STORAGE_KEY=": (f"STORAGE_KEY={KEY}", "a storage account key"),
    "storageKey:": (f"storageKey: {KEY}", "a storage account key"),
    "accountkey=": (f"accountkey={KEY}", "a storage account key"),
    "AZURE_STORAGE_ACCESS_KEY": (f"AZURE_STORAGE_ACCESS_KEY='{KEY}'", "a storage account key"),
    "SharedAccessKey in url form": (f"x=1&sharedaccesskey%3D{PLAIN_ENCODED}", "a storage account key"),
    "sig%3D": (f"https%3A//a%3Fsv%3D1%26sig%3D{ENCODED.replace('%', '%25')}", "a shared access signature (SAS)"),
    "sig u003d": (f"a?sv=1\\u0026sig\\u003d{ENCODED}", "a shared access signature (SAS)"),
    "sig&#61;": (f"a?sv=1&amp;sig&#61;{ENCODED}", "a shared access signature (SAS)"),
    "SIG=": (f"SIG={SIGNATURE}", "a shared access signature (SAS)"),
    "gitlab": ("t: glpat-" + "aB1_" * 5, "a GitLab token"),
    "github actions": ("t: ghs_" + "a1B2" * 9, "a GitHub token"),
    "slack": ("xoxb-" + "1234567890-" * 3 + "abc", "a Slack token"),
    "slack hook": (
        "https://hooks.slack.com/services/T" + "A1" * 5 + "/B" + "A1" * 5 + "/" + "aB" * 12,
        "a Slack webhook",
    ),
    "google": ("AIza" + "aB1-_" * 7, "a Google API key"),
    "anthropic": ("sk-ant-api03-" + "aB1-" * 10, "an Anthropic key"),
    "openai": ("sk-proj-" + "aB1" * 10 + "T3BlbkFJ" + "aB1" * 10, "an OpenAI key"),
    "stripe": ("sk_live_" + "aB1" * 8, "a Stripe key"),
    "sendgrid": ("SG." + "aB" * 11 + "." + "aB1" * 14 + "a", "a SendGrid key"),
    "npm": ("npm_" + "aB1" * 12, "an npm token"),
    "pypi": ("pypi-AgEIcHlwaS5vcmc" + "aB1-_" * 12, "a PyPI token"),
    "wandb": ("WANDB_API_KEY=" + "0a1b" * 10, "a Weights & Biases key"),
}


@pytest.mark.parametrize("case", MORE_FOUND.values(), ids=MORE_FOUND.keys())
def test_other_spellings_and_other_vendors_are_found(case: tuple[str, str]) -> None:
    text, what = case
    assert [(one.line, one.what) for one in scan(f"first\n{text}\nlast\n".encode())] == [(2, what)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_what_windows_editors_write_is_read(encoding: str) -> None:
    text = f"first\r\naccount_key: {KEY}\r\n"
    assert [one.line for one in scan(text.encode(encoding))] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "env: {WANDB_API_KEY: abc}",
        "  HF_TOKEN: abc",
        "  DB_PASSWORD: 12345",
        "  MY_SECRET: x1",
        "  api-key: 'abc'",
        '  "storageKey": "abc"',
        "  PRIVATE_KEY=abc",
        "  smtp.password = abc",
        "sas: abc",
        "  clientSecret: abc",
    ],
)
def test_every_setting_whose_name_says_secret_counts_in_a_configuration(line: str) -> None:
    assert [one.line for one in scan(f"a: b\n{line}\n".encode(), configuration=True)] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "secret_env: [HF_TOKEN, WANDB_API_KEY]",
        "tokenizer: bert",
        "max_tokens: 512",
        "token: 512",
        "env: {HF_TOKEN: '${HF_TOKEN}'}",
        "  HF_TOKEN: $HF_TOKEN",
        "ssh_public_key: ssh-rsa AAAA",
        "key: value",
        "password_file: /run/secrets/x",
        "token_path: x",
        "monkey: 3",
    ],
)
def test_settings_that_hold_no_secret_do_not(line: str) -> None:
    assert scan(f"{line}\n".encode(), configuration=True) == ()


HOSTILE = {
    "headers without a body": (BEGIN + "\n" + "a: \n" * 30).encode(),
    "headers of blanks": (BEGIN + "\n" + "a: " + " \n" * 60).encode() * 300,
    "a frame again and again": (BEGIN + "\n").encode() * 100_000,
    "names of keys": b"accountkey" * 500_000,
    "names and blanks": b"account_key" + b" " * 4_000_000,
    "signatures": b"sig=" * 1_000_000,
    "one long line": b"password" * 500_000,
    "settings": b"a:" * 2_000_000,
    "blanks": b" " * 4_000_000,
    "findings": (f"account_key: {KEY}\n" * 40_000).encode(),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_file_makes_the_look_slow(data: bytes) -> None:
    # Not the time that other programs take.
    started = time.thread_time()
    scan(data, configuration=True)
    assert time.thread_time() - started < 5
