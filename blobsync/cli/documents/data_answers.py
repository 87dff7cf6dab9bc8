"""``data`` of the commands that move, list, compare and remove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blobsync.base.plan_reasons import Reason
from blobsync.cli.documents.kinds import (
    COUNT,
    FLAG,
    INTEGER,
    MD5,
    MOMENT,
    NUMBER,
    TEXT,
    Schema,
    choice,
    choice_of,
    described,
    list_of,
    maybe,
    of_fields,
    record,
)
from blobsync.jobspec.spec import State
from blobsync.keep.listing import COMPLETE, HALF, NONE, Checkpoint
from blobsync.plan.progress import Progress
from blobsync.plan.request_counts import Operations
from blobsync.plan.spreading import SpreadPlan
from blobsync.plan.transfer_plan import VERBS, Action, Route, Shape
from blobsync.project.transfer_history import TransferEntry
from blobsync.project.verify import CLASSES, COMPARED_BY

BYTES = described(COUNT, "bytes")
PATH = described(TEXT, "from the project's root, as a user would type it")

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
    "bytes_transferred": BYTES,
    "bytes_reused": described(COUNT, "bytes that were at the destination already"),
    "not_compared": described(
        COUNT, "files from outside Azure that were copied, but not compared: their source keeps no checksum of them"
    ),
    "seconds": described(NUMBER, "of the whole command"),
    "azcopy_job_ids": list_of(TEXT),
    "warnings": list_of(TEXT),
}
RECEIPT = described(maybe(TEXT), "the file that names every file of it")
_OPERATIONS = described(
    record(of_fields(Operations)),
    "requests by what accounts charge them as, and bytes that leave; of plans and other processes, by estimate",
)
TRANSFERRED: Mapping[str, Schema] = {**_COUNTS, "receipt": RECEIPT, "operations": _OPERATIONS}

_ACTION = record(
    {"path": PATH, "action": _ACTIONS, "reason": choice_of(Reason), "size": BYTES},
    {
        "aside": described(TEXT, "the name under which the other version stays"),
        "on_record": described(COUNT, "bytes that an unfinished run left there"),
        "delta": described({"const": True}, "only the blocks that changed move"),
    },
)
_ACCOUNT = record(
    {
        "container": TEXT,
        "versioning": described(maybe(FLAG), "what is replaced or deleted stays as a version; null: unknown"),
        "soft_delete_days": described(maybe(COUNT), "deleted blobs stay for so long; 0: not at all; null: unknown"),
        "hierarchical_namespace": described(maybe(FLAG), "folders are directories; null: unknown"),
        "immutability": described(maybe(FLAG), "blobs can be neither replaced nor deleted; null: unknown"),
    }
)
_PLANNED: Mapping[str, Schema] = {
    **_COUNTS,
    "accounts": list_of(_ACCOUNT),
    "bytes_planned": BYTES,
    "bytes_on_record": described(COUNT, "of these, bytes that are already there"),
    "engine_why": TEXT,
    "operations": _OPERATIONS,
    "estimated_seconds": record({}, {"direct": NUMBER, "azcopy": NUMBER}),
    "processes": COUNT,
    "processes_why": TEXT,
    "spread": described(maybe(record(of_fields(SpreadPlan))), "over which nodes; null: this machine alone"),
}
_PLANS = (
    record({**_PLANNED, "actions": list_of(_ACTION)}),
    record({**_PLANNED, "actions_file": described(TEXT, "JSON lines, one action each, of a large plan")}),
)
_DETACHED = record(
    {
        "job_id": TEXT,
        "backend": TEXT,
        "cluster": TEXT,
        "status": choice_of(State),
        "planned": COUNT,
        "bytes_planned": BYTES,
        "nodes": COUNT,
        "shards": COUNT,
    }
)

_TALLY = record({"files": COUNT, "bytes": COUNT})
_ENTRY_STATUS = record(
    {
        "path": PATH,
        "url": TEXT,
        "here": _TALLY,
        "there": described(maybe(_TALLY), "null: nothing is known of the container; incomplete if as_of is null"),
        "to_upload": described(_TALLY, "what u would move"),
        "to_download": described(_TALLY, "what d would move"),
        "conflicts": described(_TALLY, "both sides have something of their own"),
        "never_verified": described(_TALLY, "may differ: the same size and no MD5, or never looked for"),
        "newer_at_destination": described(COUNT, "those of to_download that changed in the container"),
        "missing_here": described(COUNT, "those of to_download that are not here"),
        "ignored": described(COUNT, "files that the entry ignores"),
        "left_out": described(COUNT, "symlinks that are not followed"),
        "not_files": described(COUNT, "pipes, sockets and devices"),
        "unreadable": described(COUNT, "files that cannot be read, or whose name no blob can have"),
        "as_of": described(maybe(NUMBER), "when the container was last listed as a whole, in seconds since 1970"),
        "answers": described(FLAG, "whether the account answers"),
        "silence": described(maybe(TEXT), "why it does not"),
        "drifted": described(list_of(PATH), "whose lock is not what the container has, as far as that is known"),
        "jobs": described(
            list_of(record({"job_id": TEXT, "status": choice_of(State), "ended": maybe(NUMBER)})),
            "those of the project that upload there, and may have done so after as_of",
        ),
    }
)

_SET_STATE = choice(COMPLETE, HALF, NONE)
_CHECKPOINT = record(
    {
        **of_fields(Checkpoint, time=maybe(MOMENT)),
        "here": _SET_STATE,
        "there": described(_SET_STATE, "in the container; complete: it has a mark, and its files are as that says"),
        "missing": described(TEXT, "why one of the two is half, or what its mark lacks"),
        "lineage": described(TEXT, "the id of the first of the jobs that were submitted in each other's place"),
        "sealed": described(FLAG, "its mark has a seal of yours; others are restored only by their job and step"),
        "is_next": described(FLAG, "a restart of that lineage takes it"),
    }
)

_BLOB = {
    "path": PATH,
    "size": maybe(BYTES),
    "last_modified": maybe(MOMENT),
    "md5": maybe(MD5),
    "tier": maybe(TEXT),
    "etag": maybe(TEXT),
}
_SUMS = {"count": COUNT, "bytes": COUNT}
_USAGE = record({"entries": list_of(record({"path": PATH, "size": BYTES, "count": COUNT})), **_SUMS})

# Receipts of older versions may lack newer keys.
_VERSION = {"size": maybe(BYTES), "md5": maybe(TEXT), "etag": maybe(TEXT)}
_OLDER = "true: there are older ones, which --max leaves out"
_FILE_OF_HISTORY = record(
    {
        "action": described(maybe(TEXT), "the route, or deleted"),
        "path": maybe(PATH),
        **_VERSION,
        "was": described(maybe(record({}, _VERSION)), "what was replaced or deleted"),
    }
)
_PROGRESS = record({**of_fields(Progress), "told": MOMENT})
_RUNNING = record(
    {
        "id": described(TEXT, "as in the history, once it has planned"),
        "kind": TEXT,
        "planning": described(FLAG, "nothing moves yet"),
        **dict.fromkeys(("command", "user", "host"), TEXT),
        "pid": COUNT,
        "paths": list_of(PATH),
        "began": MOMENT,
        "progress": _PROGRESS,
    }
)
_TRANSFER = record(
    {
        **of_fields(TransferEntry, began=MOMENT),
        "progress": described(maybe(_PROGRESS), "of a running transfer that reports it; else null"),
    }
)

_KEEPER = record(
    {
        "id": TEXT,
        "pid": COUNT,
        **dict.fromkeys(("host", "user", "cluster", "command"), TEXT),
        "began": MOMENT,
        "paths": list_of(PATH),
        "settle": described(NUMBER, "seconds without a change after which a file is still"),
        "told": MOMENT,
        "rounds": described(COUNT, "that uploaded something"),
        "last_round": maybe(MOMENT),
        "uploaded": COUNT,
        "bytes": BYTES,
        "waiting": described(COUNT, "files that wait until they are still, or for another try"),
        "failing": COUNT,
        "conflicts": described(COUNT, "of these, files that both sides changed"),
        "problem": described(maybe(TEXT), "why nothing works now"),
        "problem_since": maybe(MOMENT),
        "polling": described(maybe(TEXT), "why changes are found by walking; null: the system tells of them"),
    }
)
_KEPT = record(
    {
        "rounds": described(COUNT, "that uploaded something"),
        "uploaded": COUNT,
        "bytes": BYTES,
        "seconds": NUMBER,
        "waiting": described(COUNT, "files that are not uploaded yet"),
        "idle": described(FLAG, "nothing changed any more"),
        "problems": list_of(TEXT),
    }
)

_PLACE = record(
    {
        "path": PATH,
        "url": TEXT,
        "local": TEXT,
        "folder": described(TEXT, "the folder entry that covers the path"),
        "account": TEXT,
        "container": TEXT,
        "blob": TEXT,
        "why": TEXT,
    }
)
_STAT = record(
    {
        "path": PATH,
        "local": maybe(record({"size": BYTES, "md5": described(maybe(MD5), "null: it could not be read")})),
        "local_is_folder": FLAG,
        "remote": maybe(record(_BLOB)),
        "remote_is_folder": FLAG,
        "verified_md5": maybe(MD5),
        "equal": described(maybe(FLAG), "null: not known"),
        "url": TEXT,
    }
)
_DIFFERENCE = record(
    {
        "path": PATH,
        "status": choice("equal", "differs", "local_only", "remote_only"),
        "here": described(maybe(COUNT), "bytes of the local file; null: no such file"),
        "there": described(maybe(COUNT), "bytes of the blob; null: no such blob"),
        "etag": described(maybe(TEXT), "of the version that was compared"),
        "lines": described(list_of(TEXT), "of a unified diff, from the container's version to the local one"),
        "no_lines": described(maybe(choice("binary", "large")), "why there are none although the two differ"),
    }
)
_DIGEST = described(TEXT, "the SHA-256 of the list: path, size and MD5 of each file")
_LOCK = {"path": PATH, "digest": _DIGEST, "files": COUNT, "bytes": BYTES}
_LOCKED = record(
    {
        **_LOCK,
        "changed": described(FLAG, "the lock says something else than before"),
        "files_written": described(list_of(PATH), "to be committed"),
        "list_url": described(maybe(TEXT), "of a long list, which is in the container"),
        "here": described(record({}, dict.fromkeys(CLASSES, COUNT)), "these files here, by the classes of verify"),
    }
)
_LOCK_CHANGES = record(
    {
        "path": PATH,
        "before": record(_LOCK),
        "after": record(_LOCK),
        **dict.fromkeys(("added", "changed", "removed"), COUNT),
        "files": list_of(
            record(
                {
                    "path": PATH,
                    "status": choice("added", "changed", "removed"),
                    "before": described(maybe(BYTES), "null: it was not there"),
                    "after": described(maybe(BYTES), "null: it is not there any more"),
                }
            )
        ),
    }
)
_FAILURE_OF_HISTORY = record(
    {"path": PATH, "code": TEXT, "message": described(maybe(TEXT), "null in receipts of older versions")}
)
_LINK = record(
    {
        "path": PATH,
        "url": described(TEXT, "a secret: anybody who has it can use it"),
        "scope": choice("blob", "folder", "container"),
        "seconds": COUNT,
        "permission": TEXT,
    }
)
_TRASHED = record(
    {
        "id": described(TEXT, "of the run that replaced or deleted them, as in the history"),
        "at": MOMENT,
        "removed_after": described(MOMENT, "from then on the next run that needs the trash removes them"),
        "count": COUNT,
        "bytes": BYTES,
    },
    {"files": list_of(record({"path": PATH, "size": BYTES}))},
)
_REMOVED = {"paths": list_of(PATH), "count": COUNT, "bytes": BYTES, "dry_run": FLAG, "deleted": COUNT, "failed": COUNT}


def data_answers(job: Schema) -> Mapping[str, Sequence[Schema]]:
    """Command -> the schemas of its ``data``, of which one applies; ``job`` is a job in ``history``."""
    transfer = (record(TRANSFERRED), *_PLANS, _DETACHED)
    return {
        "u": transfer,
        "d": transfer,
        "plan": _PLANS,
        "apply": (record(TRANSFERRED), _DETACHED),
        "verify": (
            record(
                {
                    "counts": record({}, dict.fromkeys(CLASSES, COUNT)),
                    "bytes_equal": BYTES,
                    "compared_by": record({}, dict.fromkeys(COMPARED_BY, COUNT)),
                    "not_equal": list_of(record({"path": PATH, "status": choice(*CLASSES), "size": INTEGER})),
                }
            ),
        ),
        "status": (
            record(
                {
                    "fresh": FLAG,
                    "differs": FLAG,
                    "entries": list_of(_ENTRY_STATUS),
                    "running": list_of(_RUNNING),
                    "kept": list_of(_KEEPER),
                }
            ),
        ),
        "keep start": (_KEPT, record({**_KEEPER["properties"], "log": TEXT})),
        "keep ls": (record({"keepers": list_of(_KEEPER)}),),
        "keep stop": (record({"stopped": list_of(record({"id": TEXT, "paths": list_of(PATH)}))}),),
        "checkpoints": (record({"checkpoints": list_of(_CHECKPOINT)}),),
        "checkpoint done": (record({"path": TEXT, "ranks": COUNT}),),
        "history": (
            record({"transfers": list_of(_TRANSFER), "jobs": list_of(job), "older": described(FLAG, _OLDER)}),
            record(
                {
                    "transfers": list_of(_TRANSFER),
                    "files": list_of(_FILE_OF_HISTORY),
                    "failures": list_of(_FAILURE_OF_HISTORY),
                    "receipt_kept": FLAG,
                }
            ),
            record({"jobs": list_of(job)}),
        ),
        "ls": (record({"entries": list_of(record(_BLOB, {"url": TEXT})), **_SUMS}), _USAGE),
        "du": (_USAGE,),
        "stat": (record({"paths": list_of(_STAT)}),),
        "diff": (_DIFFERENCE, _LOCK_CHANGES),
        "lock": (record({"locks": list_of(_LOCKED)}),),
        "resolve": (record({"paths": list_of(_PLACE)}),),
        "url": (record({"urls": list_of(_LINK), "warnings": list_of(TEXT)}),),
        "rm": (record(_REMOVED, {"receipt": RECEIPT}),),
        "undo": transfer,
        "trash ls": (record({"runs": list_of(_TRASHED), "bytes": BYTES}),),
        "trash restore": (record({"id": TEXT, "restored": COUNT, "failed": COUNT, "bytes": BYTES}),),
        "trash empty": (record({"ids": list_of(TEXT), "deleted": COUNT, "bytes": BYTES}),),
    }
