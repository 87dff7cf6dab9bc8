"""Files that are there to hold secrets, by their names: they are no code, and ``init`` leaves them out.

Only a pattern that names one includes it (``!.env.local`` in ``.blobsyncignore``). Credentials in other files are
found by their form, in ``code.secrets``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Bytes of a file that is a secret only if it holds a token.
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
_FILES = {
    ".boto": _PASSWORDS,
    ".databrickscfg": _PASSWORDS,
    ".dockercfg": _PASSWORDS,
    ".git-credentials": _PASSWORDS,
    ".htpasswd": _PASSWORDS,
    ".my.cnf": _PASSWORDS,
    ".netrc": _PASSWORDS,
    "_netrc": _PASSWORDS,
    ".pgpass": _PASSWORDS,
    ".s3cfg": _PASSWORDS,
    ".vault-token": _PASSWORDS,
    "kubeconfig": _PASSWORDS,
    "rclone.conf": _PASSWORDS,
}
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
# Settings of package managers, which hold a token only where somebody logged in.
_WITH_TOKENS = {
    ".npmrc": re.compile(rb"_auth|_password", re.IGNORECASE),
    ".yarnrc.yml": re.compile(rb"npmAuth", re.IGNORECASE),
    ".pypirc": re.compile(rb"password", re.IGNORECASE),
    "pip.conf": re.compile(rb"://[^/\s@]{1,200}@"),
}


def why_secret(name: str, *, folder: bool, read: Callable[[], bytes]) -> str | None:
    """What a file or folder of this name holds, None where it is no secret by its name.

    ``read`` gives the first ``LOOKED_AT`` bytes of it; it is called for few names.
    """
    small = name.lower()
    if folder:
        return f"credentials of {_FOLDERS[small]}" if small in _FOLDERS else None
    if small in _FILES:
        return _FILES[small]
    if small.startswith(".env") and small.rpartition(".")[2] not in _EXAMPLES:
        return _ENDINGS[".env"]
    if _SSH_KEY.fullmatch(small) and not small.endswith(".pub"):
        return "a private key"
    if small in _WITH_TOKENS:
        return _PASSWORDS if _WITH_TOKENS[small].search(read()) else None
    return next((what for ending, what in _ENDINGS.items() if small.endswith(ending)), None)


def names_it(pattern: str) -> bool:
    """Whether a pattern that takes something in (``!...``) names it, rather than everything there is."""
    last = pattern.removeprefix("!").rstrip("/").rpartition("/")[2]
    return bool(last.strip("*?"))
