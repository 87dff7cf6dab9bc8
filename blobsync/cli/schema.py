"""What ``--json`` prints, as JSON schemas (draft 2020-12): one for each command, made here and nowhere else.

``blobsync schema COMMAND`` prints one, the documentation site has a page and a file for each, and the tests check every
document against its schema. Schemas are closed: no document has other keys. ``data`` of each command stands in a frame
that is the same for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from blobsync.backends.protocol import ClusterSummary, Holder
from blobsync.base.check_results import CheckStatus
from blobsync.base.errors import FailureCode, UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.plain_json import hints_of
from blobsync.base.plan_reasons import Reason
from blobsync.cli.command_words import WORDS
from blobsync.cli.commands import NO_CLUSTER, Commands, argument, registered
from blobsync.cli.jobs import ACCEPTED
from blobsync.cli.output import STATUSES, VERSION, Result
from blobsync.cli.session import Session
from blobsync.jobs.first_free import Candidate
from blobsync.jobspec.spec import State
from blobsync.plan.progress import Progress
from blobsync.plan.request_counts import Operations
from blobsync.plan.spreading import SpreadPlan
from blobsync.plan.transfer_plan import VERBS, Action, Route, Shape
from blobsync.project.checkpoints import COMPLETE, HALF, NONE, Checkpoint
from blobsync.project.transfer_history import TransferEntry
from blobsync.project.verify import CLASSES, COMPARED_BY
from blobsync.tunnels.named import NamedTunnel

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
# An object with any names.
ANY_OBJECT: Schema = {"type": "object"}

MOMENT: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|\+00:00)$"}
MD5: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}

_PLAIN: Mapping[type, Schema] = {str: TEXT, bool: FLAG, int: INTEGER, float: NUMBER}


def described(kind: Schema, meaning: str) -> Schema:
    """The schema with a description."""
    return {**kind, "description": meaning}


def choice(*values: str) -> Schema:
    """One of some texts."""
    return {"type": "string", "enum": list(values)}


def choice_of(kind: type[Enum]) -> Schema:
    """One of the values of an enumeration."""
    return choice(*(each.value for each in kind))


def maybe(kind: Schema) -> Schema:
    """A value of this kind, or null."""
    if isinstance(kind.get("type"), str) and "enum" not in kind:
        return {**kind, "type": [kind["type"], "null"]}
    return {"anyOf": [kind, {"type": "null"}]}


def list_of(kind: Schema) -> Schema:
    """A list of any length."""
    return {"type": "array", "items": kind}


def by_name(kind: Schema) -> Schema:
    """An object with any names, each with a value of this kind."""
    return {"type": "object", "additionalProperties": kind}


def record(optional: Mapping[str, Schema] = MappingProxyType({}), /, **known: Schema) -> Schema:
    """An object with all of ``known``, perhaps some of ``optional``, and nothing else."""
    return {
        "type": "object",
        "properties": {**known, **optional},
        "required": list(known),
        "additionalProperties": False,
    }


def of_fields(kind: type, **instead: Schema) -> Mapping[str, Schema]:
    """The fields of a dataclass or ``NamedTuple`` by their names; ``instead`` has the schemas of fields that differ."""
    return {name: instead.get(name) or _of_annotation(hint) for name, hint in hints_of(kind).items()}


def _of_annotation(annotation: Any) -> Schema:
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if get_origin(annotation) in (Union, UnionType):
        (inner,) = (each for each in get_args(annotation) if each is not NoneType)
        return maybe(_of_annotation(inner))
    if get_origin(annotation) is tuple:
        return list_of(_of_annotation(get_args(annotation)[0]))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return choice_of(annotation)
    if isinstance(annotation, type):
        return record(**of_fields(annotation))
    raise TypeError(f"no schema is known for {annotation}")


_BYTES = described(COUNT, "bytes")
_PATH = described(TEXT, "from the project's root, as a user would type it")

_ENGINE = choice("azcopy", "direct", "relay")
# Transfers have their verb as the action; other actions have their name.
_MOVING = (Action.TRANSFER, Action.ADOPT)
_ACTIONS = choice(*dict.fromkeys(VERBS.values()), *(each.value for each in Action if each not in _MOVING))

_COUNTS: Mapping[str, Schema] = {
    "route": described(choice_of(Route), "where the bytes move from and to"),
    "engine": described(_ENGINE, "what moves them"),
    "shape": choice_of(Shape),
    "planned": described(COUNT, "files that are to move"),
    "transferred": described(COUNT, "files that moved"),
    "verified": described(COUNT, "files that were compared at the destination and are equal"),
    "unchanged": COUNT,
    "newer_at_destination": described(COUNT, "files that only the destination changed; they are left alone"),
    "skipped": described(COUNT, "symlinks that are not followed, and what is neither a file nor a folder"),
    "extras": described(COUNT, "files that only the destination has"),
    "ignored": described(COUNT, "files that the ignore patterns of the entry leave out"),
    "deleted": COUNT,
    "failed": COUNT,
    "conflicts": described(COUNT, "files that both sides changed; they are left alone"),
    "bytes_transferred": _BYTES,
    "bytes_reused": described(COUNT, "bytes that were at the destination already"),
    "not_compared": described(
        COUNT, "files from outside Azure that were copied, but not compared: their source keeps no checksum of them"
    ),
    "seconds": described(NUMBER, "of the whole command"),
    "azcopy_job_ids": list_of(TEXT),
    "warnings": list_of(TEXT),
}
_RECEIPT = described(maybe(TEXT), "the file that names every file of it")
_OPERATIONS = described(
    record(**of_fields(Operations)),
    "requests by what accounts charge them as, and bytes that leave; of plans and other processes, by estimate",
)
_TRANSFERRED: Mapping[str, Schema] = {**_COUNTS, "receipt": _RECEIPT, "operations": _OPERATIONS}

_ACTION = record(
    {
        "aside": described(TEXT, "the name under which the other version stays"),
        "on_record": described(COUNT, "bytes that an unfinished run left there"),
        "delta": described({"const": True}, "only the blocks that changed move"),
    },
    path=_PATH,
    action=_ACTIONS,
    reason=choice_of(Reason),
    size=_BYTES,
)
_ACCOUNT = record(
    container=TEXT,
    versioning=described(maybe(FLAG), "what is replaced or deleted stays as a version; null: unknown"),
    soft_delete_days=described(maybe(COUNT), "deleted blobs stay for so long; 0: not at all; null: unknown"),
    hierarchical_namespace=described(maybe(FLAG), "folders are directories; null: unknown"),
    immutability=described(maybe(FLAG), "blobs can be neither replaced nor deleted; null: unknown"),
)
_PLANNED: Mapping[str, Schema] = {
    **_COUNTS,
    "accounts": list_of(_ACCOUNT),
    "bytes_planned": _BYTES,
    "bytes_on_record": described(COUNT, "of these, bytes that are already there"),
    "engine_why": TEXT,
    "operations": _OPERATIONS,
    "estimated_seconds": record({"direct": NUMBER, "azcopy": NUMBER}),
    "processes": COUNT,
    "processes_why": TEXT,
    "spread": described(maybe(record(**of_fields(SpreadPlan))), "over which nodes; null: this machine alone"),
}
_PLANS = (
    record(**_PLANNED, actions=list_of(_ACTION)),
    record(**_PLANNED, actions_file=described(TEXT, "JSON lines, one action each, of a large plan")),
)
_DETACHED = record(
    job_id=TEXT,
    backend=TEXT,
    cluster=TEXT,
    status=choice_of(State),
    planned=COUNT,
    bytes_planned=_BYTES,
    nodes=COUNT,
    shards=COUNT,
)

_TALLY = record(files=COUNT, bytes=COUNT)
_ENTRY_STATUS = record(
    path=_PATH,
    url=TEXT,
    here=_TALLY,
    there=described(maybe(_TALLY), "null: nothing is known of the container; incomplete if as_of is null"),
    to_upload=described(_TALLY, "what u would move"),
    to_download=described(_TALLY, "what d would move"),
    conflicts=described(_TALLY, "both sides have something of their own"),
    never_verified=described(_TALLY, "may differ: the same size and no MD5, or never looked for"),
    newer_at_destination=described(COUNT, "those of to_download that changed in the container"),
    missing_here=described(COUNT, "those of to_download that are not here"),
    ignored=described(COUNT, "files that the entry ignores"),
    left_out=described(COUNT, "symlinks that are not followed"),
    not_files=described(COUNT, "pipes, sockets and devices"),
    unreadable=described(COUNT, "files that cannot be read, or whose name no blob can have"),
    as_of=described(maybe(NUMBER), "when the container was last listed as a whole, in seconds since 1970"),
    answers=described(FLAG, "whether the account answers"),
    silence=described(maybe(TEXT), "why it does not"),
    drifted=described(list_of(_PATH), "whose lock is not what the container has, as far as that is known"),
    jobs=described(
        list_of(record(job_id=TEXT, status=choice_of(State), ended=maybe(NUMBER))),
        "those of the project that upload there, and may have done so after as_of",
    ),
)

_SET_STATE = choice(COMPLETE, HALF, NONE)
_CHECKPOINT = record(
    **of_fields(
        Checkpoint,
        time=maybe(MOMENT),
        here=_SET_STATE,
        there=described(_SET_STATE, "in the container; complete: it has a mark, and its files are as that says"),
        missing=described(TEXT, "why one of the two is half, or what its mark lacks"),
        lineage=described(TEXT, "the id of the first of the jobs that were submitted in each other's place"),
        sealed=described(FLAG, "its mark has a seal of yours; others are restored only by their job and step"),
        is_next=described(FLAG, "a restart of that lineage takes it"),
    )
)

_BLOB = {
    "path": _PATH,
    "size": maybe(_BYTES),
    "last_modified": maybe(MOMENT),
    "md5": maybe(MD5),
    "tier": maybe(TEXT),
    "etag": maybe(TEXT),
}
_SUMS = {"count": COUNT, "bytes": COUNT}
_USAGE = record(entries=list_of(record(path=_PATH, size=_BYTES, count=COUNT)), **_SUMS)

# Receipts of older versions may lack newer keys.
_VERSION = {"size": maybe(_BYTES), "md5": maybe(TEXT), "etag": maybe(TEXT)}
_FILE_OF_HISTORY = record(
    action=described(maybe(TEXT), "the route, or deleted"),
    path=maybe(_PATH),
    **_VERSION,
    was=described(maybe(record(_VERSION)), "what was replaced or deleted"),
)
_PROGRESS = record(**of_fields(Progress), told=MOMENT)
_RUNNING = record(
    id=described(TEXT, "as in the history, once it has planned"),
    kind=TEXT,
    planning=described(FLAG, "nothing moves yet"),
    **dict.fromkeys(("command", "user", "host"), TEXT),
    pid=COUNT,
    paths=list_of(_PATH),
    began=MOMENT,
    progress=_PROGRESS,
)
_TRANSFER = record(
    **of_fields(TransferEntry, began=MOMENT),
    progress=described(maybe(_PROGRESS), "of a running transfer that reports it; else null"),
)

_KEEPER = record(
    id=TEXT,
    pid=COUNT,
    **dict.fromkeys(("host", "user", "cluster", "command"), TEXT),
    began=MOMENT,
    paths=list_of(_PATH),
    settle=described(NUMBER, "seconds without a change after which a file is still"),
    told=MOMENT,
    rounds=described(COUNT, "that uploaded something"),
    last_round=maybe(MOMENT),
    uploaded=COUNT,
    bytes=_BYTES,
    waiting=described(COUNT, "files that wait until they are still, or for another try"),
    failing=COUNT,
    conflicts=described(COUNT, "of these, files that both sides changed"),
    problem=described(maybe(TEXT), "why nothing works now"),
    problem_since=maybe(MOMENT),
    polling=described(maybe(TEXT), "why changes are found by walking; null: the system tells of them"),
)
_KEPT = record(
    rounds=described(COUNT, "that uploaded something"),
    uploaded=COUNT,
    bytes=_BYTES,
    seconds=NUMBER,
    waiting=described(COUNT, "files that are not uploaded yet"),
    idle=described(FLAG, "nothing changed any more"),
    problems=list_of(TEXT),
)

_PLACE = record(
    path=_PATH,
    url=TEXT,
    local=TEXT,
    folder=described(TEXT, "the folder entry that covers the path"),
    account=TEXT,
    container=TEXT,
    blob=TEXT,
    why=TEXT,
)
_STAT = record(
    path=_PATH,
    local=maybe(record(size=_BYTES, md5=described(maybe(MD5), "null: it could not be read"))),
    local_is_folder=FLAG,
    remote=maybe(record(**_BLOB)),
    remote_is_folder=FLAG,
    verified_md5=maybe(MD5),
    equal=described(maybe(FLAG), "null: not known"),
    url=TEXT,
)
_DIFFERENCE = record(
    path=_PATH,
    status=choice("equal", "differs", "local_only", "remote_only"),
    here=described(maybe(COUNT), "bytes of the local file; null: no such file"),
    there=described(maybe(COUNT), "bytes of the blob; null: no such blob"),
    etag=described(maybe(TEXT), "of the version that was compared"),
    lines=described(list_of(TEXT), "of a unified diff, from the container's version to the local one"),
    no_lines=described(maybe(choice("binary", "large")), "why there are none although the two differ"),
)
_DIGEST = described(TEXT, "the SHA-256 of the list: path, size and MD5 of each file")
_LOCK = {"path": _PATH, "digest": _DIGEST, "files": COUNT, "bytes": _BYTES}
_LOCKED = record(
    **_LOCK,
    changed=described(FLAG, "the lock says something else than before"),
    files_written=described(list_of(_PATH), "to be committed"),
    list_url=described(maybe(TEXT), "of a long list, which is in the container"),
    here=described(record(dict.fromkeys(CLASSES, COUNT)), "these files here, by the classes of verify"),
)
_LOCK_CHANGES = record(
    path=_PATH,
    before=record(**_LOCK),
    after=record(**_LOCK),
    **dict.fromkeys(("added", "changed", "removed"), COUNT),
    files=list_of(
        record(
            path=_PATH,
            status=choice("added", "changed", "removed"),
            before=described(maybe(_BYTES), "null: it was not there"),
            after=described(maybe(_BYTES), "null: it is not there any more"),
        )
    ),
)
_FAILURE_OF_HISTORY = record(
    path=_PATH, code=TEXT, message=described(maybe(TEXT), "null in receipts of older versions")
)
_LINK = record(
    path=_PATH,
    url=described(TEXT, "a secret: anybody who has it can use it"),
    scope=choice("blob", "folder", "container"),
    seconds=COUNT,
    permission=TEXT,
)
_TRASHED = record(
    {"files": list_of(record(path=_PATH, size=_BYTES))},
    id=described(TEXT, "of the run that replaced or deleted them, as in the history"),
    at=MOMENT,
    removed_after=described(MOMENT, "from then on the next run that needs the trash removes them"),
    count=COUNT,
    bytes=_BYTES,
)
_REMOVED = {
    "paths": list_of(_PATH),
    "count": COUNT,
    "bytes": _BYTES,
    "dry_run": FLAG,
    "deleted": COUNT,
    "failed": COUNT,
}


_STATUS = described(choice_of(State), "in ACT's words")
_SEEN = described(FLAG, "true: the time is when blobsync saw it; the state may be older")
_CHANGE = record(time=maybe(MOMENT), nodes=COUNT, wanted=COUNT, seen=_SEEN)
_STATES = list_of(record(state=choice_of(State), time=maybe(MOMENT), until=maybe(MOMENT), seen=_SEEN))
_ELASTIC = record(
    min_nodes=COUNT, max_nodes=COUNT, nodes=described(maybe(COUNT), "that run"), wanted=COUNT, changes=list_of(_CHANGE)
)
_JOB_FIELDS: Mapping[str, Schema] = {
    "job_id": TEXT,
    "status": _STATUS,
    "status_as_of": described(maybe(MOMENT), "when the cluster confirmed it"),
    "status_confirmed": described(FLAG, "false: the cluster could not be asked"),
    "exit_code": maybe(INTEGER),
    "reason": TEXT,
    "restarts": COUNT,
    "cluster": TEXT,
    "backend": TEXT,
    "native_id": described(TEXT, "the scheduler's own"),
    "url": maybe(TEXT),
    "name": TEXT,
    "command": list_of(TEXT),
    "nodes": COUNT,
    "processes": COUNT,
    "gpus": COUNT,
    "hosts": list_of(TEXT),
    "by": described(maybe(TEXT), "its user, by a record in the container; null: this project has a record of it"),
    "submitted": maybe(MOMENT),
    "started": maybe(MOMENT),
    "ended": maybe(MOMENT),
    "elapsed_seconds": maybe(NUMBER),
    "elapsedTime": described(maybe(NUMBER), "hours, as ACT has it"),
    "code_digest": maybe(TEXT),
    "git_commit": maybe(TEXT),
    "git_dirty": maybe(FLAG),
    "folders": by_name(record(mode=TEXT, url=TEXT)),
    "locks": described(by_name(TEXT), "the digests of its locked folders as they were known when it was submitted"),
    "resubmission_of": maybe(TEXT),
    "foreign": described(FLAG, "true: blobsync did not submit it"),
    "unread": described(list_of(TEXT), "what of a foreign job could not be read"),
    "ssh": described(maybe(TEXT), "the command that opens a shell in a waiting job"),
    "hold_seconds": maybe(COUNT),
    "after": described(maybe(TEXT), "the job that has to complete first"),
    "elastic": described(maybe(_ELASTIC), "null: the number of nodes is fixed"),
    "task_counts": described(maybe(by_name(COUNT)), "how many tasks are in each state; null: it has no tasks"),
    "states": described(_STATES, "its states over time"),
}
_JOB = record(**_JOB_FIELDS)
_CAUSE = record(
    code=TEXT,
    meaning=TEXT,
    retriable=described(FLAG, "whether a retry may help"),
    log=TEXT,
    line_number=COUNT,
    line=TEXT,
    count=described(COUNT, "log lines that show it"),
)
_LOG_NAME = described(TEXT, "empty: there is none yet")
_LOGS = described(list_of(TEXT), "local files of the logs")
_BEHIND = described(maybe(COUNT), "how long a complete checkpoint has been on a node alone; null: none, or not known")
_LEFT = described(list_of(TEXT), "of an ended job: files outside of its folders, and checkpoints without a mark")
_TASK = record(
    index=COUNT,
    parameters=by_name(TEXT),
    **{name: _JOB_FIELDS[name] for name in ("status", "exit_code", "restarts", "reason", "started", "ended")},
    elapsed_seconds=maybe(NUMBER),
    last_line=described(TEXT, "of its log; empty with --metric"),
    metric=described(maybe(NUMBER), "with --metric FILE:FIELD"),
)
_REPORT = record(
    **_JOB_FIELDS,
    logs=_LOGS,
    causes=list_of(_CAUSE),
    tail=list_of(TEXT),
    checkpoint_seconds_behind=_BEHIND,
    left_behind=_LEFT,
    preparing=described(maybe(TEXT), "how far a node is before the command starts; null: it is ready"),
    tasks=described(list_of(_TASK), "those of a sweep"),
)
_LISTED = record(jobs=list_of(_JOB), experiment=maybe(TEXT), more=COUNT)
_ATTEMPT = record(**_JOB_FIELDS, causes=list_of(_CAUSE), next_job_id=maybe(TEXT))

_ACCEPTED = {name: _JOB_FIELDS[name] for name in ACCEPTED}
_CHOICE = {"choice": described(list_of(record(**of_fields(Candidate))), "with -c a,b: the clusters that were asked")}
_PLANNED_TASKS = described(list_of(record(index=COUNT, parameters=by_name(TEXT), command=list_of(TEXT))), "of a sweep")
_SUBMITTED = (
    record(
        _CHOICE
        | {"exit_code": described(maybe(INTEGER), "with --wait: the job's"), "reason": described(TEXT, "with --wait")},
        **_ACCEPTED,
    ),
    record(_CHOICE | {"tasks": _PLANNED_TASKS}, plan=described(TEXT, "what would be submitted"), job_id=TEXT),
)

_DECISION = record(
    path=_PATH,
    included=FLAG,
    reason=TEXT,
    pattern=maybe(TEXT),
    file=described(maybe(TEXT), "the ignore file that has the pattern"),
    line=maybe(COUNT),
    size=maybe(_BYTES),
)
_GIT = record(commit=maybe(TEXT), dirty=FLAG, uncommitted=list_of(TEXT))
_CODE = {
    "code_digest": TEXT,
    "files": COUNT,
    "bytes": COUNT,
    "git": described(maybe(_GIT), "null: not in a git repository"),
    "left_out": list_of(_DECISION),
}
_PUBLISHED = record(
    status=choice("published", "unchanged", "would_publish"),
    **_CODE,
    code_path=described(TEXT, "the blob that jobs unpack"),
    kept=described(TEXT, "the blob that keeps this version"),
    archive_bytes=maybe(_BYTES),
    seconds=NUMBER,
    removed=described(list_of(TEXT), "older versions that were removed"),
    notes=list_of(TEXT),
)
_MEMBER = record(path=_PATH, size=_BYTES, mode=choice("644", "755", "link"), reason=maybe(TEXT))

_TUNNEL = of_fields(NamedTunnel)
_TUNNEL_STATE = {
    **_TUNNEL,
    "open": FLAG,
    "open_at": described(maybe(COUNT), "the port of 127.0.0.1"),
    "restarts": COUNT,
    "problem": maybe(TEXT),
    "job_id": maybe(TEXT),
}
_OUTPUT = record(
    output=described(TEXT, "the output's id"),
    name=described(TEXT, "below that output"),
    path=_PATH,
    size=_BYTES,
    last_modified=MOMENT,
    on_disk=described(maybe(TEXT), "its path on this machine; null: in a container"),
    url=described(maybe(TEXT), "with --url; a secret"),
)
_OF_OUTPUTS = {"job_id": TEXT, "status": _STATUS, "count": COUNT}
_COPIED = {"copied": described(COUNT, "files copied into the project from a linked folder")}
_OUTPUTS = (
    record({"bytes": COUNT, **_COPIED}, **_OF_OUTPUTS, files=list_of(_OUTPUT)),
    record(_COPIED, **_OF_OUTPUTS, **_TRANSFERRED),
)
_OPENED = {"job_id": TEXT, "url": described(TEXT, "may hold a token"), "local_port": COUNT, "tunnel": FLAG}
_SSH_CONFIG = {"ssh_config": list_of(TEXT)}


_AUTH = choice("sas", "key", "identity")
_CHECKS = list_of(record(check=TEXT, status=choice_of(CheckStatus), detail=TEXT))
_FINDING = record(
    cluster=described(TEXT, "empty: not of a single cluster"),
    about=TEXT,
    check=TEXT,
    status=choice_of(CheckStatus),
    detail=TEXT,
    hint=maybe(TEXT),
)
_CHECKED = record(
    file=TEXT,
    ok=FLAG,
    problems=list_of(TEXT),
    warnings=list_of(TEXT),
    submit_refuses=described(maybe(FLAG), "null: no cluster file, or a wrong one"),
    folders=described(maybe(by_name(TEXT)), "folder entry -> its location"),
    platform=maybe(TEXT),
)
_WRITTEN = {"written": list_of(TEXT), "kept": described(list_of(TEXT), "files that existed and are unchanged")}
_PROGRAM = record(path=TEXT, version=TEXT, origin=described(TEXT, "how it was found"))
_EMULATOR = {
    "running": FLAG,
    "pid": COUNT,
    "port": COUNT,
    "endpoint": TEXT,
    "location": described(maybe(TEXT), "the folder of the blobs; null: in memory"),
    "version": described(TEXT, "Azurite's"),
}
_MOVED = described(list_of(TEXT), "account files whose port was changed")
_MADE = described(list_of(TEXT), "containers of account files that were created")
_STOPPED = record(running=described({"const": False}, "no emulator runs"))
_COMPUTE = record(
    name=TEXT,
    **dict.fromkeys(("type", "vm_size", "vm_priority"), maybe(TEXT)),
    **dict.fromkeys(("min_nodes", "max_nodes", "nodes", "busy_nodes"), maybe(COUNT)),
    state=maybe(TEXT),
    idle_seconds=maybe(COUNT),
    location=maybe(TEXT),
    problems=list_of(TEXT),
)
_COMPUTES_CHANGED = (
    record(compute=described(maybe(_COMPUTE), "null: it is gone")),
    record(plan=described(TEXT, "the request that --dry-run does not send")),
)
_PLACE_OF_LOGIN = {"file": TEXT, "container": TEXT}
_CODE_PUBLISHED = record(code_path=TEXT, digest=TEXT, at=described(TEXT, "UTC, when init published it"))
_CONVERTED = record(files=list_of(TEXT), command=list_of(TEXT), notes=list_of(TEXT), written=FLAG)

_JOBS = record(jobs=list_of(_JOB))
_TRANSFERS = (record(**_TRANSFERRED), *_PLANS, _DETACHED)
# Command as typed (``u``, ``compute ls``) -> the schemas of its ``data``, of which one applies.
ANSWERS: Mapping[str, Sequence[Schema]] = {
    **dict.fromkeys(("u", "d"), _TRANSFERS),
    "plan": _PLANS,
    "apply": (record(**_TRANSFERRED), _DETACHED),
    "verify": (
        record(
            counts=record(dict.fromkeys(CLASSES, COUNT)),
            bytes_equal=_BYTES,
            compared_by=record(dict.fromkeys(COMPARED_BY, COUNT)),
            not_equal=list_of(record(path=_PATH, status=choice(*CLASSES), size=INTEGER)),
        ),
    ),
    "status": (
        record(
            fresh=FLAG,
            differs=FLAG,
            entries=list_of(_ENTRY_STATUS),
            running=list_of(_RUNNING),
            kept=list_of(_KEEPER),
        ),
    ),
    "keep start": (_KEPT, record(**_KEEPER["properties"], log=TEXT)),
    "keep ls": (record(keepers=list_of(_KEEPER)),),
    "keep stop": (record(stopped=list_of(record(id=TEXT, paths=list_of(_PATH)))),),
    "checkpoints": (record(checkpoints=list_of(_CHECKPOINT)),),
    "checkpoint done": (record(path=TEXT, ranks=COUNT),),
    "history": (
        record(
            transfers=list_of(_TRANSFER),
            jobs=list_of(_JOB),
            older=described(FLAG, "true: there are older ones, which --max leaves out"),
        ),
        record(
            transfers=list_of(_TRANSFER),
            files=list_of(_FILE_OF_HISTORY),
            failures=list_of(_FAILURE_OF_HISTORY),
            receipt_kept=FLAG,
        ),
        record(jobs=list_of(_JOB)),
    ),
    "ls": (record(entries=list_of(record({"url": TEXT}, **_BLOB)), **_SUMS), _USAGE),
    "du": (_USAGE,),
    "stat": (record(paths=list_of(_STAT)),),
    "diff": (_DIFFERENCE, _LOCK_CHANGES),
    "lock": (record(locks=list_of(_LOCKED)),),
    "resolve": (record(paths=list_of(_PLACE)),),
    "url": (record(urls=list_of(_LINK), warnings=list_of(TEXT)),),
    "rm": (record({"receipt": _RECEIPT}, **_REMOVED),),
    "undo": _TRANSFERS,
    "trash ls": (record(runs=list_of(_TRASHED), bytes=_BYTES),),
    "trash restore": (record(id=TEXT, restored=COUNT, failed=COUNT, bytes=_BYTES),),
    "trash empty": (record(ids=list_of(TEXT), deleted=COUNT, bytes=_BYTES),),
    "init": (
        *(_PUBLISHED, record(**_CODE | {"list": list_of(_MEMBER)}), _DECISION),
        *(record(**_CODE), record(**_CODE, **_TRANSFERRED)),
    ),
    "initc": (_PUBLISHED,),
    "submit": _SUBMITTED,
    "q": (_LISTED, record(jobs=list_of(_REPORT))),
    **dict.fromkeys(("qq", "qr", "qf"), (_LISTED,)),
    "logs": (record(job_id=TEXT, log=_LOG_NAME, lines=list_of(TEXT), logs=_LOGS, left_behind=_LEFT),),
    "outputs": _OUTPUTS,
    "a": (_JOBS,),
    "resubmit": (record(**_ACCEPTED), record(jobs=list_of(record(**_ACCEPTED)))),
    "scale": (_JOBS,),
    "ssh": (record(command=list_of(TEXT)),),
    "tunnel job": (record(**_OPENED),),
    "tunnel add": (record(tunnel=record(**_TUNNEL), **_SSH_CONFIG),),
    "tunnel ls": (record(tunnels=list_of(record(**_TUNNEL_STATE))),),
    "tunnel open": (record(**_TUNNEL_STATE, **_SSH_CONFIG),),
    "tunnel close": (record(name=TEXT, closed=described(FLAG, "false: it was not open")),),
    "tunnel rm": (record(name=TEXT),),
    "summary": (record(cluster=TEXT, **of_fields(ClusterSummary)),),
    "blame": (record(cluster=TEXT, holders=list_of(record(**of_fields(Holder)))),),
    "parse": (record(job_id=TEXT, causes=list_of(_CAUSE), retriable=FLAG),),
    "watch": (record(attempts=list_of(_ATTEMPT)),),
    "config check": (record(files=list_of(_CHECKED)),),
    "config new": (record(**_WRITTEN), record(**_WRITTEN, auth=_AUTH, login_stored=FLAG, checks=_CHECKS)),
    "config trust-link": (
        record(links=list_of(record(path=TEXT, target=TEXT)), trusted=described(FLAG, "false: no longer")),
    ),
    "config trust-state": (
        record(
            folder=TEXT,
            id=TEXT,
            projects=list_of(TEXT),
            accepted=described(FLAG, "false: it was trusted before"),
            closed=described(list_of(TEXT), "what others could write to until now"),
        ),
    ),
    "config trust-code": (record(trusted=list_of(TEXT), published=list_of(_CODE_PUBLISHED)),),
    "config trust-docker": (record(trusted=list_of(list_of(TEXT))),),
    "login": (
        record(**_PLACE_OF_LOGIN, auth=_AUTH, stored=FLAG, checks=_CHECKS),
        record(**_PLACE_OF_LOGIN, forgotten=described(FLAG, "false: nothing was stored")),
        record(logins=list_of(record(container=TEXT, auth=_AUTH))),
    ),
    **dict.fromkeys(("convert batchai", "convert philly"), (_CONVERTED,)),
    "compute ls": (record(computes=list_of(_COMPUTE)),),
    **dict.fromkeys(("compute create", "compute scale", "compute rm"), _COMPUTES_CHANGED),
    "doctor": (record(findings=list_of(_FINDING)),),
    **dict.fromkeys(("azcopy install", "azcopy path"), (_PROGRAM,)),
    "emulator start": (record(**_EMULATOR, already_running=FLAG, written=_MOVED, made=_MADE),),
    "emulator stop": (record(**_EMULATOR), _STOPPED),
    "emulator status": (record(**_EMULATOR), _STOPPED),
    "schema": (record(commands=list_of(TEXT), schema=described(maybe(ANY_OBJECT), "of the command")),),
}


_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_ERROR = record(
    code=described(choice_of(FailureCode), "what scripts compare"),
    message=TEXT,
    hint=described(maybe(TEXT), "what to do next"),
    path=described(maybe(TEXT), "the file, folder or job"),
)
_TIMINGS = described(list_of(record(span=TEXT, seconds=NUMBER)), "with --timings: the seconds of each phase")


def schema_id(command: str) -> str:
    """The ``$id`` of a schema; it changes with the version of the document only."""
    return f"urn:blobsync:json:{VERSION}:{command.replace(' ', '-')}"


def document_schema(command: str, shapes: Sequence[Schema]) -> dict[str, Any]:
    """The schema of the output of ``blobsync COMMAND --json``. ``data`` is empty if the command could not start."""
    timed = ({**each, "properties": {**each["properties"], "timings": _TIMINGS}} for each in shapes)
    whole = record(
        blobsync=described({"const": VERSION}, "the version of this document"),
        command=described(list_of(TEXT), "the words of the command line, without secrets"),
        status={"enum": [*STATUSES]},
        exit_code=described(
            INTEGER,
            "of blobsync: " + ", ".join(f"{int(each)} {each.name.lower().replace('_', ' ')}" for each in ExitCode),
        ),
        data={"anyOf": [*timed, record()]},
        errors=list_of(_ERROR),
    )
    succeeded = {"properties": {"status": {"const": STATUSES[0]}}}
    has_data = {"properties": {"data": {"minProperties": 1}}}
    heading = {"$schema": _DRAFT, "$id": schema_id(command), "title": f"blobsync {command} --json"}
    return {**heading, **whole, "if": succeeded, "then": has_data}


def complete_documented(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The commands that print a document; after the name of a group, its subcommands."""
    typed = " ".join([*(ctx.params.get("words") or ()), ""])
    left = (name.removeprefix(typed) for name in ANSWERS if name.startswith(typed))
    return [(word, "") for word in dict.fromkeys(each.partition(" ")[0] for each in left)]


app = Commands()


@app.command("schema", takes=NO_CLUSTER)
def schema(
    session: Session,
    words: Annotated[
        list[str] | None,
        argument(
            metavar="[COMMAND]",
            help="A command; without one, all of them are listed.",
            autocompletion=complete_documented,
        ),
    ] = None,
) -> Result:
    """Print the JSON schema of what a command prints with --json.

    It holds for this version of blobsync. Its $id stays the same as long as scripts that read the document need no
    change.

    \b
      blobsync schema                  the commands that have one
      blobsync schema u
      blobsync schema compute ls
    """
    if not words:
        return Result({"commands": list(ANSWERS), "schema": None}, list(ANSWERS))
    name = " ".join([WORDS[words[0]].names[0] if words[0] in WORDS else words[0], *words[1:]])
    if name not in ANSWERS:
        said = f"'{name}' prints no JSON document" if _is_command(name) else f"no such command '{name}'"
        raise UsageError(said, hint="'blobsync schema' lists the commands that print a JSON document")
    found = document_schema(name, ANSWERS[name])
    return Result({"commands": [name], "schema": found}, json.dumps(found, indent=1).splitlines())


def _is_command(name: str) -> bool:
    """Whether it is a command, by its main name, a group, or a command of one."""
    first, _, rest = name.partition(" ")
    word = WORDS.get(first)
    if word is None:
        return False
    group = registered(word).groups.get(first)
    return not rest or (group is not None and rest in group.commands)
