"""Named templates of the form: one YAML file each in ``aux_data/jobs``, made to be committed.

A template holds no credential: one that would is refused. A file from a clone may be hostile: its name passes the
gate of ``local.names``, a link is not followed, its values are texts of fields that exist, and it only fills in the
form, where everything can be seen before it is submitted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, ConfigError, LocalFileError, NothingMatchedError, UsageError
from blobsync.base.redaction import is_secret_name, redact
from blobsync.base.user_folders import replace_file
from blobsync.config.loader import parse_overrides
from blobsync.config.scaffold import NewFile
from blobsync.config.yaml_document import read_document
from blobsync.jobs.form.fields import is_field
from blobsync.jobs.form.filled import MOST_CHARS, FilledForm, JobForm
from blobsync.jobs.record import is_secret
from blobsync.local.names import safe_name

TEMPLATE_FOLDER = "aux_data/jobs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SUFFIX = ".yaml"
_COMMENT = "A filled form of New job in blobsync web. It holds no credentials, so it can be committed."
# The field with the digest of code that the user trusts for one job; a template cannot set it.
_CODE = "code"
# A reference to a variable of the environment is no credential.
_REFERENCE = re.compile(r"\$(?:\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)")
_REFERRING = re.compile(rf"[A-Za-z0-9_]*\s*[=:]?\s*[\"']?{_REFERENCE.pattern}")


def template_names(root: Path) -> tuple[str, ...]:
    """The templates of the project, sorted; files that cannot be one are left out."""
    folder = root / TEMPLATE_FOLDER
    try:
        found = [entry.name.removesuffix(_SUFFIX) for entry in os.scandir(folder) if entry.name.endswith(_SUFFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(name for name in found if _NAME.fullmatch(name)))


def load_template(root: Path, name: str) -> FilledForm:
    """The form that a template fills in. Raises ``NothingMatchedError``, ``ConfigError`` and ``UnsafeNameError``."""
    shown = _file(name)
    path = root / shown
    _demand_own_folder(root)
    if path.is_symlink():
        raise ConfigError("is a link, and a template must be a file", file=shown, hint=f"remove it: {path}")
    if not path.is_file():
        known = ", ".join(template_names(root))
        raise NothingMatchedError(f"there is no template {name}", hint=f"available: {known}" if known else None)
    document = read_document(path, shown)
    values: dict[str, str] = {}
    notes: list[str] = []
    for key, value in _fields(document.values):
        if not isinstance(value, (str, int)) or isinstance(value, bool) or len(str(value)) > MOST_CHARS:
            raise document.error((key,), "must be a text")
        if key == _CODE:
            notes.append(f"{shown}: {key}: a template does not say whose code runs; type the digest if you trust it")
        elif is_field(key):
            values[key] = str(value)
        elif key != "cluster":
            notes.append(f"{shown}: {key}: unknown field, ignored")
    return FilledForm(JobForm(str(document.values.get("cluster") or ""), values), tuple(notes))


def save_template(root: Path, name: str, form: JobForm, *, replace: bool = False) -> str:
    """Write a template; returns its file. Raises ``UsageError`` for one that exists (unless ``replace``) or would hold
    a credential, ``UnsafeNameError`` and ``LocalFileError``.
    """
    shown = _file(name)
    found = sorted(_credentials(form))
    if found:
        raise UsageError(
            f"a template can be committed, and this one would hold what looks like a credential: {', '.join(found)}",
            hint="use ${BLOBSYNC_NAME}, and set that variable where jobs are submitted",
        )
    if os.path.lexists(root / shown) and not replace:
        raise UsageError(f"the template {name} exists already", hint="choose another name, or replace it")
    values: dict[str, Any] = {"cluster": form.cluster}
    folders: dict[str, dict[str, str]] = {}
    for key in form.values:
        text = form.text(key)
        if not text or key == _CODE or not is_field(key):
            continue
        kind, _, folder = key.partition(":")
        if folder:
            folders.setdefault(kind, {})[folder] = text
        else:
            values[key] = text
    _write(root, NewFile(shown, _COMMENT, {**values, **folders}))
    return shown


def _file(name: str) -> str:
    return f"{TEMPLATE_FOLDER}/{safe_name(name, allowed=_NAME)}{_SUFFIX}"


def _demand_own_folder(root: Path) -> None:
    """The folder of a project that came from elsewhere may be a link to any place of the user's."""
    if os.path.realpath(root / TEMPLATE_FOLDER) != os.path.join(os.path.realpath(root), TEMPLATE_FOLDER):
        hint = f"remove the link: {root / TEMPLATE_FOLDER}"
        raise ConfigError(
            "is a link, and templates are read and written in the project only", file=TEMPLATE_FOLDER, hint=hint
        )


def _write(root: Path, file: NewFile) -> None:
    """Whole or not at all; a link in its place is replaced, not followed."""
    _demand_own_folder(root)
    path = root / file.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, file.text.encode(), 0o666)
    except OSError as error:
        raise LocalFileError(f"cannot write {file.name}: {error.strerror}", path=file.name) from error


def _fields(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The fields by their names; those of folder entries are in mappings."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and is_field(f"{key}:folder"):
            found += [(f"{key}:{folder}", text) for folder, text in value.items()]
        else:
            found.append((key, value))
    return found


def _credentials(form: JobForm) -> set[str]:
    """The fields and variables that look like, or are known to be, credentials."""
    found = {key for key in form.values if _hidden(form.text(key))}
    for line in form.text("env").split("\n"):
        name, _, value = line.partition("=")
        if value and is_secret_name(name) and not _REFERENCE.fullmatch(value.strip()):
            found.add(name.strip())
    try:
        found |= set(_secret_keys(parse_overrides(form.text("other"))))
    except BlobsyncError:
        # The check of its field reports the mistake; what cannot be read may hold anything.
        found.add("other")
    return found


def _secret_keys(values: Mapping[str, Any]) -> list[str]:
    found = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _secret_keys(value)
        elif is_secret(key.rpartition("$")[2], value) and not _REFERENCE.fullmatch(str(value).strip()):
            found.append(key)
    return found


def _hidden(text: str) -> bool:
    return redact(text) != text or is_secret("", _REFERRING.sub("", text))
