"""The code of a project as it is now: every file with the hash of its content, and one digest for all.

The digest, which names the code archive, is that of ``code.unpack``.

Hashes are kept in ``code/files.json`` of the state folder with what ``stat`` showed, so that unchanged code is known
to be unchanged without reading it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path

from blobsync.base.background_calls import side_by_side, usable_cores
from blobsync.base.errors import LocalFileError, SecretsFoundError
from blobsync.base.file_states import LocalState, regular_only
from blobsync.base.plain_json import parse_json
from blobsync.base.records import dataclass
from blobsync.base.user_folders import replace_file
from blobsync.code.packed_files import CodeFile, CodeRules, Decision, find_code
from blobsync.code.secrets import MAX_LOOKED_AT, RULES_VERSION, PossibleSecret, scan
from blobsync.code.unpack import DigestRecord, digest_of_records
from blobsync.local.files import SourceFile
from blobsync.local.os_errors import ChangedWhileReadError

CONFIGURATION = "aux_data/"

# Archives larger than this (bytes, before compression) come with a list of what is biggest.
LARGE = 100 * 1000 * 1000
BIGGEST = 10

_CACHE_VERSION = f"1.{RULES_VERSION}"
_PIECE = 8 * 1024 * 1024
_BATCH = 64

# A file written within so many nanoseconds of being hashed may have been written after that, too, on a
# file system with coarse clocks (FAT: 2 s): its hash is not remembered.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file of the code with its hash; ``crc`` is the CRC-32 for the zip."""

    file: CodeFile
    sha256: str
    crc: int
    findings: tuple[PossibleSecret, ...] = field(default=(), repr=False)

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def size(self) -> int:
        """Bytes in the archive before compression; a link's is the length of its target."""
        return self.file.state.size


@dataclass(frozen=True, slots=True, repr=False)
class CodeSnapshot:
    """The code as one value; ``left_out`` and ``notes`` are shown to the user."""

    root: Path
    files: tuple[HashedFile, ...]
    digest: str
    left_out: tuple[Decision, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<CodeSnapshot {self.digest[:12]}: {len(self.files):,} files, {self.size:,} bytes>"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def copy_to(self, folder: Path, *, links: bool = True) -> None:
        """Copy the files, with their executable bits; without ``links`` what those to files lead to in their place."""
        for hashed in self.files:
            source, target, mode = self.root / hashed.path, folder / hashed.path, hashed.file.mode
            if mode == "link" and not links and not source.is_file():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if mode == "link" and links:
                target.symlink_to(hashed.file.target)
            else:
                shutil.copyfile(source, target)
                target.chmod(0o755 if mode == "755" else 0o644)

    def biggest(self, count: int = BIGGEST) -> tuple[HashedFile, ...]:
        """The biggest files, the biggest first."""
        return tuple(sorted(self.files, key=lambda file: (-file.size, file.path))[:count])


def take_snapshot(
    rules: CodeRules, cache_file: Path, *, allow_secrets: bool = False, now_ns: Callable[[], int] = time.time_ns
) -> CodeSnapshot:
    """Walk the project once. ``cache_file`` remembers hashes and may be missing; ``now_ns`` is the clock of files.

    Raises what ``find_code`` raises, ``ChangedWhileReadError``, and ``SecretsFoundError`` when a file looks as
    if it held a credential and ``allow_secrets`` is not set.
    """
    tree = find_code(rules)
    cache = _Cache.load(cache_file, now_ns())
    known = {file.path: found for file in tree.files if (found := cache.find(file)) is not None}
    for hashed in _hash_all(rules.root, [file for file in tree.files if file.path not in known]):
        known[hashed.path] = hashed
    everything = [known[file.path] for file in tree.files]
    cache.save(everything)
    left_out = list(tree.left_out)
    files: list[HashedFile] = []
    for hashed in everything:
        if hashed.findings and hashed.path.startswith(CONFIGURATION):
            left_out.append(secret_configuration(hashed.path, hashed.size))
        else:
            files.append(hashed)
    if not allow_secrets:
        _refuse_secrets(files)
    return CodeSnapshot(rules.root, tuple(files), digest_of(files), tuple(left_out), tree.notes)


def secret_configuration(path: str, size: int) -> Decision:
    """The decision to exclude a file of ``aux_data/`` that contains a key."""
    return Decision(path, included=False, reason="a configuration file that contains a secret", size=size)


def holds_secret(root: Path, path: str) -> bool:
    """Whether the one file ``path`` would be excluded for a key in it."""
    if not path.startswith(CONFIGURATION) or not (root / path).is_file():
        return False
    with open(root / path, "rb", opener=regular_only) as stream:
        return bool(scan(stream.read(MAX_LOOKED_AT), configuration=True))


def digest_of(files: Iterable[HashedFile]) -> str:
    """The digest of these files, given in the order of their names, in hex."""
    return digest_of_records(DigestRecord(hashed.file.mode, hashed.sha256, hashed.path) for hashed in files)


def _hash_all(root: Path, files: Sequence[CodeFile]) -> Iterator[HashedFile]:
    batches = [files[start : start + _BATCH] for start in range(0, len(files), _BATCH)]
    for hashed in side_by_side(lambda batch: [_hash(root, file) for file in batch], batches, usable_cores()):
        yield from hashed


def _hash(root: Path, file: CodeFile) -> HashedFile:
    if file.mode == "link":
        target = file.target.encode()
        return HashedFile(file, hashlib.sha256(target).hexdigest(), zlib.crc32(target))
    whole, crc, first = hashlib.sha256(), 0, b""
    with open_source(root, file) as source:
        for start in range(0, file.state.size, _PIECE):
            piece = source.read_at(start, min(_PIECE, file.state.size - start))
            whole.update(piece)
            crc = zlib.crc32(piece, crc)
            first = first or piece
        source.check_unchanged()
    findings = scan(first, configuration=file.path.startswith(CONFIGURATION))
    return HashedFile(file, whole.hexdigest(), crc, findings)


@contextmanager
def open_source(root: Path, file: CodeFile) -> Iterator[SourceFile]:
    """Open the file as the walk saw it; raises ``ChangedWhileReadError`` if it changed or is gone."""
    try:
        source = SourceFile(root / file.path, file.state)
    except LocalFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise ChangedWhileReadError(f"{file.path} disappeared while it was being packed", path=file.path) from error
        raise
    try:
        yield source
    finally:
        source.close()


def _refuse_secrets(files: Sequence[HashedFile]) -> None:
    found = [f"{file.path}:{one.line} ({one.what})" for file in files for one in file.findings]
    if not found:
        return
    more = f" and {len(found) - BIGGEST} more" if len(found) > BIGGEST else ""
    raise SecretsFoundError(
        f"the code seems to contain credentials: {', '.join(found[:BIGGEST])}{more}",
        hint="exclude the file with a pattern in .blobsyncignore, or pass --allow-secrets if it is not a credential",
        path=found[0].partition(" (")[0],
    )


class _Cache:
    """Hashes of files by path, each valid while ``stat`` shows the same."""

    def __init__(self, file: Path, rows: dict[str, list[object]], now_ns: int) -> None:
        self._file = file
        self._rows = rows
        self._looked_at = now_ns

    @classmethod
    def load(cls, file: Path, now_ns: int) -> _Cache:
        # If it is damaged, all files are read again.
        with suppress(OSError, ValueError, AttributeError, TypeError):
            document = parse_json(file.read_bytes())
            if document["version"] == _CACHE_VERSION and isinstance(document["files"], dict):
                return cls(file, document["files"], now_ns)
        return cls(file, {}, now_ns)

    def find(self, file: CodeFile) -> HashedFile | None:
        row = self._rows.get(file.path)
        if not isinstance(row, list) or row[:4] != _key(file.state) or file.mode == "link":
            return None
        match row[4:]:
            case [str(sha256), int(crc), list(findings)]:
                with suppress(ValueError, TypeError):
                    known = tuple(PossibleSecret(int(line), str(what)) for line, what in findings)
                    return HashedFile(file, sha256, crc, known)
        return None

    def save(self, files: Sequence[HashedFile]) -> None:
        rows = {
            hashed.path: [*_key(hashed.file.state), hashed.sha256, hashed.crc, _plain(hashed.findings)]
            for hashed in files
            if hashed.file.mode != "link" and self._settled(hashed.file.state)
        }
        if rows == self._rows:
            return
        text = json.dumps({"version": _CACHE_VERSION, "files": rows}, separators=(",", ":"))
        # Without it the next run is only slower, so do not fail.
        with suppress(OSError):
            replace_file(self._file, text.encode())

    def _settled(self, state: LocalState) -> bool:
        return max(state.mtime_ns, state.ctime_ns) < self._looked_at - _SETTLED_NS


def _key(state: LocalState) -> list[object]:
    return [state.size, state.mtime_ns, state.ctime_ns, state.inode]


def _plain(findings: Sequence[PossibleSecret]) -> list[list[object]]:
    return [[finding.line, finding.what] for finding in findings]
