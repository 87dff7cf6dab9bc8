"""What is taken for a credential, and what is not. All keys here are made up."""

from __future__ import annotations

import base64
import hashlib

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
