"""Records of jobs in the container, beside their logs: other machines and colleagues find jobs by them.

Each submission and each look at a job writes its record, if it has changed:

    .blobsync/jobs/<folder of the logs>/<9999999999 - time of submission>_<run id>.json

The folder's path is percent-quoted to one part. Listings go by names, so the first page has the newest jobs, and a
whole id is found without one. The first line of a record is the job's state, the second what others may know of its
specification: no value of a variable, no line of the cluster file, no path of a disk, nothing that looks like a secret.

Whoever can write to the container can write records. So nothing is ended, removed, run or trusted by one: the gate here
makes a record without a reference to a platform, and everything else is from the caller's own files.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from itertools import chain, islice
from urllib.parse import quote

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import BlobNotFoundError, BlobsyncError, UsageError
from blobsync.base.formatting import count_text
from blobsync.base.locations import BlobContainer
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import HIDDEN, redact, redact_word
from blobsync.config.loader import cluster_names
from blobsync.config.model import Cluster, StorageAccount
from blobsync.jobs.context import JobContext
from blobsync.jobs.logs import UNSEEN
from blobsync.jobs.record import JobList, JobRecord
from blobsync.jobspec.make_spec import find_mirror, mirror_place
from blobsync.jobspec.spec import (
    OWN_OUTPUT,
    RUN_ID,
    SERVICES,
    FolderLink,
    JobOptions,
    JobRef,
    JobSpec,
    RunInfo,
    State,
    TaskArray,
    TaskInfo,
    is_variable_name,
    submission_time,
)
from blobsync.jobspec.sweep import MOST_TASKS
from blobsync.jobspec.topology import job_size_text
from blobsync.local.names import blob_problem, local_problem
from blobsync.store.protocol import BlobStore

FOLDER = ".blobsync/jobs"
_VERSION_KEY, _VERSION = "blobsync_job", 1
# What times are subtracted from.
_LAST = 9_999_999_999
_NAME = re.compile(rf"([0-9]{{10}})_({RUN_ID.pattern})\.json")
# Of one record, and of all of a list together (bytes): 10,000 tasks with their parameters have 2 MB.
_MOST_BYTES, _MOST_IN_A_LIST = 4 << 20, 32 << 20
# How many of the newest are searched for a part of an id, and how many blobs are read at a time.
_SEARCHED, _AT_A_TIME = 1000, 16
_MOST_NUMBER, _MOST_COMMAND, _MOST_REASON, _MOST_SAID = 10**6, 1 << 16, 1000, 200
# The end of the year 9999, in seconds since 1970.
_MAX_TIME = 253_402_300_799
_DIGEST, _COMMIT = re.compile(r"(?:[0-9a-f]{64})?"), re.compile(r"[0-9a-f]{0,64}")
# Seconds until a job's record is written again although its state is the same, and after a failure.
_PAUSE_SECONDS, _AGAIN_SECONDS = 30.0, 600.0

# What looks like a secret in a command: the value of --hf-token, of API_KEY=, of --password=.
_WORD = (
    r"(?:[\w.-]*[-_.])?(?:(?:api|access|account|auth|private|secret|storage)[-_]?key|token|secret|passw(?:or)?d|"
    r"credentials?|sas)"
)
_OPTION = re.compile(rf"-{{1,2}}{_WORD}", re.IGNORECASE)
_GIVEN = re.compile(
    rf"((?<![\w.-])(?:-{{1,2}}{_WORD}(?:\s*=\s*|\s+)|{_WORD}=))(\"[^\"]*\"|'[^']*'|[^\s;&|]+)", re.IGNORECASE
)


class _Place(NamedTuple):
    """Where records lie: the container, a folder in it, and the clusters whose jobs these are."""

    account: StorageAccount
    folder: str
    clusters: tuple[Cluster, ...]

    def name_of(self, run_id: str) -> str:
        """The blob of a job. Raises ``ValueError`` for an id without a time."""
        moment = submission_time(run_id)
        if moment is None or not RUN_ID.fullmatch(run_id) or moment > _LAST:
            raise ValueError(f"{run_id!a} is no id of a job")
        return f"{self.folder}/{_LAST - int(moment):010d}_{run_id}.json"


# A record to write, its text, and the text's digest.
_Change = tuple[JobRecord, bytes, str]

# -- writing ---------------------------------------------------------------------------------------------------------


def share(context: JobContext, records: Sequence[JobRecord]) -> None:
    """Write the records of these jobs that have changed; notes why some could not be written."""
    own = [record for record in records if _is_shared(record)]
    known = context.history.shared([record.run_id for record in own]) if own else {}
    groups: dict[tuple[str, str], tuple[_Place, list[_Change]]] = {}
    for record in own:
        written = known.get(record.run_id)
        if written and not _is_due(written, record.state):
            continue
        body = _text_of(record).encode()
        digest = hashlib.sha256(body).hexdigest()
        if written and written[2] == digest:
            continue
        try:
            place = _place_of(context.cluster_of(record))
        except BlobsyncError:
            # Whoever needs that cluster says so.
            context.history.note_shared(record.run_id, record.state, "")
            continue
        if place is None:
            context.history.note_shared(record.run_id, record.state, digest)
        else:
            key = str(place.account.container), place.folder
            groups.setdefault(key, (place, []))[1].append((record, body, digest))
    for place, changes in groups.values():
        _write(context, place, changes)


def _is_shared(record: JobRecord) -> bool:
    """Whether it is the project's own, was accepted, is no transfer, and its service has no list of its own."""
    own = not record.by and bool(record.ref.native_id) and record.spec.spread is None
    return own and record.spec.platform not in SERVICES and 0 < (submission_time(record.run_id) or 0) <= _LAST


def _is_due(written: tuple[float, str, str], state: State) -> bool:
    """Whether to look for changes since it was written: making the text of 10,000 tasks takes a tenth of a second."""
    tried, state_then, digest = written
    if not digest:
        return time.time() - tried > _AGAIN_SECONDS
    return state_then != state.value or (not state.is_final and time.time() - tried > _PAUSE_SECONDS)


def _write(context: JobContext, place: _Place, changes: Sequence[_Change]) -> None:
    left = list(changes)
    try:
        with context.store(place.clusters[0], place.account, patient=False) as store:
            while left:
                job, body, digest = left[0]
                store.put(place.name_of(job.run_id), body, md5=hashlib.md5(body, usedforsecurity=False).digest())
                context.history.note_shared(job.run_id, job.state, digest)
                del left[0]
    except BlobsyncError as error:
        for job, *_ in left:
            context.history.note_shared(job.run_id, job.state, "")
        what = left[0][0].run_id if len(left) == 1 else f"{len(left):,} jobs"
        context.note(
            f"other machines do not see {what} as known here: {place.account.container} cannot be written:"
            f" {error.message}"
        )


def _text_of(record: JobRecord) -> str:
    info = record.info
    state = {
        _VERSION_KEY: _VERSION,
        "state": info.state.value,
        "exit_code": info.exit_code,
        "restarts": info.restarts,
        "reason": _reason(info.reason),
        "started": info.started,
        "ended": info.ended,
        "successor_of": record.successor_of,
        "tasks": [astuple(replace(task, reason=_reason(task.reason))) for task in info.tasks],
    }
    return f"{json.dumps(state, sort_keys=True)}\n{_shown(_redacted(record.spec)).to_json()}\n"


def _reason(text: str) -> str:
    return " ".join(UNSEEN.sub("\ufffd", redact(text)).split())[:_MOST_REASON]


def _redacted(spec: JobSpec) -> JobSpec:
    """With ``***`` for what looks like a secret in its command, its parameters and its name."""
    words, before = list[str](), ""
    for word in spec.argv:
        is_value = _OPTION.fullmatch(before) is not None and not word.startswith("-")
        words.append(HIDDEN if is_value else _without_secrets(word))
        before = word
    tasks = spec.tasks
    if tasks:
        secret = [_OPTION.fullmatch(f"-{name}") is not None for name in tasks.names]
        rows = tuple(
            tuple(HIDDEN if hides else _without_secrets(value) for hides, value in zip(secret, row, strict=True))
            for row in tasks.rows
        )
        tasks = replace(tasks, rows=rows)
    argv = (HIDDEN,) if sum(map(len, words)) > _MOST_COMMAND else tuple(words)
    return replace(spec, argv=argv, tasks=tasks, name=redact(spec.name))


def _without_secrets(word: str) -> str:
    return _GIVEN.sub(rf"\1{HIDDEN}", redact(redact_word(word)))


def _shown(spec: JobSpec) -> JobSpec:
    """What others may know of a specification, and what is taken of one that came from a container: nothing of its
    cluster file, of variables their names, of folders where they are in containers."""
    options = JobOptions(recalled=True)
    own: object = spec.options.get(OWN_OUTPUT)
    if isinstance(own, str):
        options["own_output"] = own
    if spec.hold:
        options["hold"] = spec.hold
    if spec.options.get("on_cpu") is True:
        options["on_cpu"] = True
    return JobSpec(
        spec.run_id,
        spec.argv,
        spec.cluster,
        spec.platform,
        name=spec.name,
        nodes=spec.nodes,
        procs_per_node=spec.procs_per_node,
        gpus_per_node=spec.gpus_per_node,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        workers_per_node=spec.workers_per_node,
        secret_env=tuple(sorted({*spec.env, *spec.secret_env})),
        code=replace(spec.code, size=0) if spec.code else None,
        folders=tuple(FolderLink(each.name, each.container, each.path, each.mode) for each in spec.folders),
        options=options,
        tasks=spec.tasks,
    )


# -- reading ---------------------------------------------------------------------------------------------------------


def newest_shared(context: JobContext, limit: int, cluster: str | None = None, listed: str = "") -> JobList:
    """The newest ``limit`` jobs of each container, of one cluster or of all, that this project has no record of; one
    bounded listing each. ``listed``: the cluster of a service whose own list is shown, too."""
    places, problems = _places(context, [cluster] if cluster else cluster_names(context.root), listed)
    found: list[JobRecord] = []
    for place in places:
        try:
            records, left = _newest_in(context, place, limit)
        except BlobsyncError as error:
            problems.append(f"jobs of others in {place.account.container} are not shown: {error.message}")
            continue
        found += records
        if left:
            where = f"{place.account.container}/{place.folder}"
            problems.append(
                f"{where} has {count_text(len(left), 'blob')} that no blobsync wrote so, left alone: {left[0]}"
            )
    return JobList(tuple(sorted(found, key=lambda one: one.submitted, reverse=True)), tuple(problems))


def _newest_in(context: JobContext, place: _Place, limit: int) -> tuple[list[JobRecord], list[str]]:
    """The jobs in its first ``limit`` blobs that are others', and why some of these are no jobs."""
    with context.store(place.clusters[0], place.account) as store:
        listed = [(_id_in(place, blob.name), blob) for blob in store.first_blobs(f"{place.folder}/", limit)]
        left = [f"{blob.name!a} is not a job's name" for run_id, blob in listed if not run_id]
        wanted, room = [], _MOST_IN_A_LIST
        for run_id, blob in listed:
            if not run_id or context.history.holds(run_id):
                continue
            if blob.size > min(room, _MOST_BYTES):
                left.append(f"{blob.name} has {blob.size:,} bytes")
                continue
            wanted.append(run_id)
            room -= blob.size
        read = list(side_by_side(lambda run_id: _read(store, place, run_id), wanted, _AT_A_TIME))
    left += [str(each) for each in read if not isinstance(each, JobRecord)]
    return [each for each in read if isinstance(each, JobRecord)], left


def find_shared(context: JobContext, wanted: str) -> JobList:
    """The jobs in containers with this id, or among the newest those whose id ends, or whose last part begins, so."""
    places, _ = _places(context, cluster_names(context.root))
    found: dict[str, JobRecord] = {}
    problems: list[str] = []
    for place in places:
        try:
            with context.store(place.clusters[0], place.account, patient=False) as store:
                for run_id in _ids_like(store, place, wanted):
                    one = _read(store, place, run_id)
                    if isinstance(one, JobRecord):
                        found.setdefault(run_id, one)
                    elif not isinstance(one, BlobNotFoundError):
                        problems.append(str(one))
        except BlobsyncError as error:
            problems.append(f"{place.account.container} could not be looked at: {error.message}")
    return JobList(tuple(found.values()), tuple(problems))


def _ids_like(store: BlobStore, place: _Place, wanted: str) -> list[str]:
    with suppress(ValueError):
        place.name_of(wanted)
        return [wanted]
    ids = (_id_in(place, blob.name) for blob in store.first_blobs(f"{place.folder}/", _SEARCHED))
    found = (id for id in ids if id and (id.endswith(wanted) or id.rpartition("_")[2].startswith(wanted)))
    # Two are too many already.
    return list(islice(found, _AT_A_TIME))


def _places(context: JobContext, names: Sequence[str], listed: str = "") -> tuple[list[_Place], list[str]]:
    """The places of these clusters, each once; and why some clusters are left out."""
    found: dict[tuple[str, str], _Place] = {}
    problems: list[str] = []
    for name in names:
        try:
            cluster = context.cluster(name)
            place = _place_of(cluster)
        except BlobsyncError as error:
            problems.append(f"cluster {name}: {error.message}; jobs of others there are not shown")
            continue
        if cluster.platform in SERVICES and name != listed:
            problems.append(f"jobs of others on {name} ({cluster.platform}) are not among these: blobsync q -c {name}")
        if place is not None:
            key = str(place.account.container), place.folder
            known = found[key].clusters if key in found else ()
            found[key] = place._replace(clusters=(*known, *place.clusters))
    return list(found.values()), problems


def _place_of(cluster: Cluster) -> _Place | None:
    place = mirror_place(cluster)
    return _Place(place[0], f"{FOLDER}/{quote(place[1], safe='')}", (cluster,)) if place else None


def _id_in(place: _Place, name: str) -> str:
    """The id in a blob's name; empty if it is not the name of that job's record."""
    match = _NAME.fullmatch(name[len(place.folder) + 1 :])
    with suppress(ValueError):
        return match[2] if match and place.name_of(match[2]) == name else ""
    return ""


def _read(store: BlobStore, place: _Place, run_id: str) -> JobRecord | Exception:
    """The job in one record, or why it is none."""
    name = place.name_of(run_id)
    try:
        with store.open(name, length=_MOST_BYTES) as reader:
            if reader.info.size > _MOST_BYTES:
                raise ValueError(f"it has {reader.info.size:,} bytes")
            body = b"".join(iter(lambda: reader.read(_MOST_BYTES), b""))
        return recalled(body, run_id, place.clusters, reader.info.last_modified)
    except BlobNotFoundError as error:
        return error
    except (BlobsyncError, ValueError, TypeError, KeyError, AttributeError) as error:
        # The error may quote what is there.
        return ValueError(f"{name} is not a job's record: {UNSEEN.sub('?', str(error))[:_MOST_SAID]}")


def recalled(body: bytes, run_id: str, clusters: Sequence[Cluster], written: float) -> JobRecord:
    """The gate of records: the job in one, as a job of one of the caller's own ``clusters``. ``written`` is when, in
    seconds since 1970. Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``BlobsyncError`` for anything else."""
    first, _, second = body.decode("utf-8").partition("\n")
    values = parse_object(first)
    if values.pop(_VERSION_KEY, None) != _VERSION:
        raise ValueError("it is of another version of blobsync")
    spec = _shown(JobSpec.from_json(second))
    if spec.run_id != run_id:
        raise ValueError("it is of another job")
    successor_of = values.pop("successor_of")
    if values.keys() & {"run_id", "nodes", "changes", "states", "granted"}:
        raise ValueError("it says more than records do")
    info = made_of(RunInfo, {**values, "run_id": run_id})
    states: tuple[RunInfo | TaskInfo, ...] = (info, *info.tasks)
    for each in states:
        _demand_state(each)
    _demand_sane(spec)
    _demand_texts(spec, [successor_of, info.reason, *(task.reason for task in info.tasks)])
    numbers = spec.tasks.all_numbers if spec.tasks else ()
    if len({task.number for task in info.tasks} & {*numbers}) != len(info.tasks) or (
        successor_of and not RUN_ID.fullmatch(successor_of)
    ):
        raise ValueError("its tasks or the job before it are none")
    cluster = next((each for each in clusters if each.name == spec.cluster), clusters[0])
    spec = replace(spec, cluster=cluster.name, platform=cluster.platform, logs=find_mirror(cluster, run_id))
    submitted = submission_time(run_id) or 0.0
    ref = JobRef(run_id, "")
    by = run_id.rsplit("_", 2)[0]
    return JobRecord(spec, ref, cluster.platform, info, submitted, successor_of=successor_of, confirmed=written, by=by)


def _demand(is_sane: bool, problem: str) -> None:
    if not is_sane:
        raise ValueError(problem)


def _demand_state(info: RunInfo | TaskInfo) -> None:
    is_counted = 0 <= info.restarts <= _MOST_NUMBER and abs(info.exit_code or 0) <= 1 << 32
    _demand(is_counted, "an exit code or a number of restarts is out of bounds")
    is_timed = all(0 <= (moment or 0) <= _MAX_TIME for moment in (info.started, info.ended))
    _demand(is_timed, "a time is out of bounds")


def _demand_sane(spec: JobSpec) -> None:
    least = (spec.nodes, spec.procs_per_node, spec.workers_per_node, spec.min_nodes or 1, spec.max_nodes or 1)
    is_sized = all(0 < each <= _MOST_NUMBER for each in least) and 0 <= spec.gpus_per_node <= _MOST_NUMBER
    _demand(is_sized, "its size is out of bounds")
    is_command = bool(spec.argv) and sum(map(len, spec.argv)) <= _MOST_COMMAND and spec.hold <= _MAX_TIME
    _demand(is_command, "its command or the time that it waits is out of bounds")
    for folder in spec.folders:
        _demand_blob(folder.container, folder.path)
        why = local_problem(folder.name)
        _demand(not why, f"the folder {folder.name!a} {why}")
    if spec.code:
        _demand_blob(spec.code.container, spec.code.blob)
        is_named = _DIGEST.fullmatch(spec.code.digest) and _COMMIT.fullmatch(spec.code.git_commit)
        _demand(bool(is_named), "the digest or the commit of its code is none")
    own = spec.options.get(OWN_OUTPUT, "")
    _demand(own in ("", *(folder.name for folder in spec.folders)), "its own output is in none of its folders")
    if spec.tasks:
        _demand_tasks(spec.tasks)


def _demand_blob(container: str, path: str) -> None:
    """Raises ``CredentialError``, too."""
    BlobContainer.parse(container)
    why = path and (blob_problem(path) or local_problem(path))
    _demand(not why, f"the path {path!a} {why}")


def _demand_tasks(tasks: TaskArray) -> None:
    numbers, names = tasks.numbers, tasks.names
    is_counted = 0 < tasks.count <= MOST_TASKS and 0 <= tasks.parallel <= MOST_TASKS
    _demand(is_counted and 0 <= tasks.cpus <= _MOST_NUMBER, "the number of its tasks is out of bounds")
    is_ordered = list(numbers) == sorted({*numbers}) and all(0 <= number <= 10 * _MOST_NUMBER for number in numbers)
    _demand(is_ordered, "its tasks have wrong numbers")
    is_named = bool(names) == bool(tasks.rows) and len({*names}) == len(names) and all(map(is_variable_name, names))
    _demand(is_named, "its parameters have wrong names")


def _demand_texts(spec: JobSpec, others: Sequence[str]) -> None:
    """Without control characters, which could drive a terminal; only a command may have several lines."""
    folders = chain.from_iterable((each.name, each.container, each.path, each.mode) for each in spec.folders)
    rows = chain.from_iterable(spec.tasks.rows if spec.tasks else ())
    line = " ".join([spec.name, *spec.secret_env, *folders, *rows, *others])
    text = " ".join(spec.argv)
    if UNSEEN.search(line) or UNSEEN.search(text) or "\n" in line or "\t" in line:
        raise ValueError("it has control characters")
    # Half a character of UTF-16 cannot be printed.
    f"{line}{text}".encode()


# -- submitting again ------------------------------------------------------------------------------------------------

# Shown what would run, raises unless the user wants that.
Agree = Callable[[Sequence[str]], None]


def demand_agreed(old: JobRecord, spec: JobSpec, agree: Agree | None, file: str) -> None:
    """Raise unless all of a job from a container is known, and the user, who has seen what would run, wants that.

    ``spec`` is that, by the user's cluster ``file``. Raises ``UsageError`` and what ``agree`` raises.
    """
    hidden = [f"word {place} of its command" for place, word in enumerate(old.spec.argv, 1) if HIDDEN in word]
    columns = old.spec.tasks.columns if old.spec.tasks else {}
    hidden += [f"the parameter {name}" for name, values in columns.items() if HIDDEN in " ".join(values)]
    if hidden:
        raise UsageError(
            f"{old.run_id} cannot be submitted again from its record in the container: {', '.join(hidden)} may be a"
            " secret, and was left out there",
            hint=f"ask {old.by}, then blobsync submit",
        )
    if missing := sorted({*old.spec.secret_env} - {*spec.env, *spec.secret_env}):
        raise UsageError(
            f"{old.run_id} had variables whose values only {old.by} has: {', '.join(missing)}",
            hint=f"add them to env: in {file}",
        )
    if agree is None:
        raise UsageError(
            f"{old.run_id} is by {old.by}, from the container: see first what it runs",
            hint=f"blobsync resubmit {old.run_id} shows it, and asks",
        )
    agree(list(_what_runs(old, spec)))


def _what_runs(old: JobRecord, spec: JobSpec) -> Iterator[str]:
    yield f"{old.run_id} is by {old.by}, from the container. With your rights, you would run:"
    # A line of its own could look like what is said here.
    yield "  command: " + shlex.join(spec.argv).replace("\n", "\\n")
    # What runs is in them as well.
    for name, values in (spec.tasks.columns if spec.tasks else {}).items():
        yield f"  parameter {name}: {', '.join(map(shlex.quote, dict.fromkeys(values)))}"
    yield f"  on: {spec.cluster} ({spec.platform}), {job_size_text(spec)}"
    yield from (f"  folder {each.name}: {each.mode} {each.container}/{each.path}" for each in spec.folders)
    yield f"  code: {spec.code.digest if spec.code else 'the folder of your project itself'}"
