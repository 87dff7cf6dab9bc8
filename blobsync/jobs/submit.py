"""Submits a job: code archive, specification, plan, SAS, submission and record, in this order.

Before that, linked folders are compared with their containers: a link shows the job what is on the disk, so a job
could train on an empty folder, succeed, and leave its results in no container.
"""

from __future__ import annotations

import secrets as random_source
import shlex
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from blobsync.ancestors.convert import MovedJob, translate_again
from blobsync.backends.protocol import Plan, Refused, Unknown
from blobsync.base.errors import (
    AmbiguousJobError,
    BlobsyncError,
    JobError,
    JobNotFoundError,
    StoppedError,
    SubmissionUnknownError,
)
from blobsync.base.locations import BlobContainer, parse_store_location
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import HIDDEN
from blobsync.config.job_keys import READ_ONLY_MODES
from blobsync.config.mapping import is_below
from blobsync.config.model import Cluster
from blobsync.config.project_root import LOCK_FOLDER
from blobsync.jobs.context import JobContext
from blobsync.jobs.empty_folders import empty_links
from blobsync.jobs.record import JobRecord, home_of
from blobsync.jobs.shared_records import Agree, demand_agreed, share
from blobsync.jobs.states import cancel, cancel_task, refresh
from blobsync.jobspec.code_choice import ChooseCode, CodeChoice, demand_known
from blobsync.jobspec.interactive import entering_command, hold_text
from blobsync.jobspec.make_spec import SubmitRequest, demand_platform, describe, find_mirror, shape_of
from blobsync.jobspec.node_archive import node_archive, publish
from blobsync.jobspec.node_secrets import grant, known_accounts, with_job_keys
from blobsync.jobspec.spec import OWN_OUTPUT, CodeRef, JobOptions, JobRef, JobSpec, own_inputs, owner_name
from blobsync.jobspec.sweep import read_array
from blobsync.jobspec.topology import asks_for_gpus, job_size_text
from blobsync.local.index import Index
from blobsync.local.lock_files import locks_in
from blobsync.plan.locked_files import known_digest
from blobsync.plan.transfer_options import ignored_by
from blobsync.store.sas import sas_minter


class Submitted(NamedTuple):
    """A job that was accepted, and what the user should know."""

    record: JobRecord
    warnings: tuple[str, ...] = ()


def new_run_id(environ: Mapping[str, str], now: float | None = None) -> str:
    """``<user>_<unix time>_<8 hex>``: sorts by time, and is a legal name for every context that we use."""
    return f"{owner_name(environ)}_{int(now or time.time())}_{random_source.token_hex(4)}"


def plan_job(
    context: JobContext,
    cluster: Cluster,
    request: SubmitRequest,
    choose_code: ChooseCode,
    *,
    hidden: Collection[str] = (),
) -> tuple[Plan, tuple[str, ...]]:
    """What would be submitted, and warnings; nothing is submitted, signed or recorded.

    ``hidden`` are variables whose values the plan does not show.
    """
    demand_platform(cluster)
    run_id = new_run_id(context.environ)
    # Errors of the request come before any code is read or uploaded.
    with cluster.naming_lines():
        describe(cluster, request, run_id, None)
        code = choose_code(cluster)
        spec = _as_it_runs(context, cluster, describe(cluster, request, run_id, code.ref))
        shown = {name: HIDDEN if name in hidden else value for name, value in spec.env.items()}
        plan = context.own_backend(cluster).plan(replace(spec, env=shown))
    return plan, code.warnings + cluster.job_notes + _shared_places(spec)


def _shared_places(spec: JobSpec) -> tuple[str, ...]:
    """Where the tasks of a sweep write to one place, unless the command takes care of that."""
    if spec.tasks is None:
        return ()
    shared = [] if OWN_OUTPUT in spec.options else [f.name for f in spec.folders if f.mode not in READ_ONLY_MODES]
    told = [f"its tasks run in one folder, {spec.options['in_place']}"] if spec.code is None else []
    if shared:
        told.append(
            f"its tasks write to the same {', '.join(shared)}: output: per_job gives each its own, $BLOBSYNC_OUTPUT"
        )
    return tuple(told)


def asked_text(cluster: Cluster, spec: JobSpec) -> str:
    """What the job asks for: ``uni (slurm): 2 nodes, 8 processes, 8 GPUs``."""
    size = f"{spec.cluster} ({spec.platform}): {job_size_text(spec)}"
    if spec.options.get("on_cpu"):
        return f"{size}: this machine has none, so it runs on the CPU"
    if spec.gpus_per_node:
        return size
    gres = str(spec.options.get("gres") or cluster.text("slurm.gres") or "") if spec.platform == "slurm" else ""
    # Without a number of GPUs, what names that number is not asked for.
    if asks_for_gpus(gres) and "{gpus}" not in gres:
        return f"{size} but those of gres {gres}"
    is_said = cluster.gpu_per_node is not None or cluster.num_gpu is not None
    return size if is_said else f"{size} (-n or gpu_per_node asks for some)"


def submit(context: JobContext, cluster: Cluster, request: SubmitRequest, choose_code: ChooseCode) -> Submitted:
    """Plan, hand over and record one job. Raises before anything runs, or returns a job that is accepted."""
    plan, warnings = plan_job(context, cluster, request, choose_code)
    _note_plan(context, cluster, plan.spec)
    submitted = hand_over(context, cluster, plan.spec)
    return Submitted(submitted.record, tuple(dict.fromkeys(warnings + submitted.warnings)))


def _note_plan(context: JobContext, cluster: Cluster, spec: JobSpec) -> None:
    """Note what is about to be submitted, while it can still be interrupted."""
    context.note(asked_text(cluster, spec))
    for sentence in empty_links(context, cluster, spec):
        context.note(sentence)


def resubmit(
    context: JobContext,
    old: JobRecord,
    *,
    to: str | None = None,
    num_gpu: int | None = None,
    choose_code: ChooseCode | None = None,
    tasks: Collection[int] | None = None,
    agree: Agree | None = None,
    locked: bool = False,
) -> Submitted:
    """Submit a recorded job again, or some tasks of it, then cancel the old one, or these, if it has not ended.

    In this order: a submission that fails never costs the job that runs. ``to`` is another cluster;
    ``num_gpu`` another number of GPUs than the job's own; ``choose_code`` takes today's code instead of the job's own.
    ``agree`` is asked about a job from a container, which nothing here can cancel.
    ``locked``: only if the locked folders are known to be as the job saw them.
    """
    origin = context.origin_of(old)
    cluster = context.cluster(to) if to else origin
    demand_platform(cluster)
    if choose_code is None:
        is_ours = "recalled" not in old.spec.options
        demand_known(context.root, old.spec.code, old.run_id, is_ours=is_ours, environ=context.environ)
    code = choose_code(cluster) if choose_code else CodeChoice(old.spec.code)
    notes = (_untaken(old.spec, cluster),) if old.spec.is_foreign else _left_behind(old, cluster)
    # The keys of a job file are on top of the cluster's, as they were when it was submitted.
    moved = translate_again(cluster, old.spec.options.get("job_file"), context.environ)
    if moved:
        cluster, notes = moved.cluster, moved.translation.notes
    with cluster.naming_lines():
        asked = (
            old
            if tasks is None or not old.spec.tasks
            else replace(old, spec=replace(old.spec, tasks=old.spec.tasks.only(tasks)))
        )
        again = _in_lineage(_spec_again(context, asked, cluster, code.ref, num_gpu, moved), old.spec)
        spec = _as_it_runs(context, cluster, again)
    if old.by:
        demand_agreed(old, spec, agree, cluster.file)
    if locked:
        _demand_same_data(context, cluster, spec, old.spec)
    _note_plan(context, cluster, spec)
    notes += (left,) if (left := _not_gone_on_from(spec, old.spec)) else ()
    new = hand_over(context, cluster, spec, successor_of=old.run_id, origin=origin)
    warnings = notes + code.warnings + new.warnings
    if old.by:
        return Submitted(new.record, warnings)
    try:
        known = refresh(context, [old]).records[0]
        for number in tasks or ():
            cancel_task(context, known, number)
        stopped = known if tasks is not None else cancel(context, known)
        if tasks is None and not known.info.state.is_final:
            warnings += (f"the old job {old.run_id} was stopped: {stopped.info.state}",)
    except BlobsyncError as error:
        warnings += (f"the old job {old.run_id} could not be cancelled: {error.message}",)
    except KeyboardInterrupt as stop:
        message = f"interrupted: {new.record.run_id} was submitted, and {old.run_id} may still run"
        raise StoppedError(message, hint=f"blobsync abort {old.run_id}") from stop
    return Submitted(new.record, warnings)


def _untaken(old: JobSpec, cluster: Cluster) -> str:
    """The note on a job that blobsync did not submit: what is not taken from it."""
    missing = f"; not read: {', '.join(old.unread)}" if old.unread else ""
    taken = "its command, its size and its variables are taken"
    return f"blobsync did not submit {old.run_id}: {taken}, all else is that of cluster {cluster.name}{missing}"


def _as_it_runs(context: JobContext, cluster: Cluster, spec: JobSpec) -> JobSpec:
    """With this version's node archive, and marked if its machine has no GPU: there it runs on the CPU.

    This machine runs jobs with the installed blobsync.
    """
    elsewhere = spec.platform != "local"
    archive = node_archive(context.environ).beside(spec.code) if spec.code and elsewhere else None
    spec = _with_options(replace(spec, node_archive=archive), "on_cpu")
    has_gpus = not spec.gpus_per_node or context.own_backend(cluster).has_gpus()
    return spec if has_gpus else _with_options(spec, on_cpu=True)


def _with_options(spec: JobSpec, *gone: str, **more: Any) -> JobSpec:
    """With these options, and without those that are gone."""
    kept = {name: value for name, value in spec.options.items() if name not in gone}
    return replace(spec, options=cast("JobOptions", {**kept, **more}))


def _in_lineage(spec: JobSpec, old: JobSpec) -> JobSpec:
    """The specification with the lineage of the job in whose place it comes, whose checkpoints it takes.

    A job that was submitted elsewhere has marks that this user's key cannot tell from anybody's: then a new lineage.
    """
    taken: dict[str, Any] = {}
    if (spec.has_checkpoints or old.has_checkpoints) and not old.is_foreign and "recalled" not in old.options:
        taken = {"lineage": old.lineage, **({"earlier_marks": True} if old.has_earlier_marks else {})}
    return _with_options(spec, "earlier_marks", "lineage", **taken)


def _not_gone_on_from(spec: JobSpec, old: JobSpec) -> str:
    """The note on a job whose checkpoints the one in its place does not take; empty if there is none."""
    rule = next((each.checkpoints for each in spec.folders if each.checkpoints), None)
    if rule is None or rule.restore_from or rule.restore == "none" or "recalled" not in old.options:
        return ""
    return (
        f"{old.run_id} was submitted elsewhere, and the marks of its checkpoints have no seal of yours: the new job"
        f" starts without them; with restore_from: {old.lineage} and restore: STEP it starts from the one that you name"
    )


def _lineage_of(context: JobContext, job: str) -> str:
    """The lineage of a job of this project's history; of another one its id."""
    with suppress(JobNotFoundError, AmbiguousJobError):
        known = context.history.find(job)
        return known.spec.lineage if known.run_id == job else job
    return job


def _spec_again(
    context: JobContext,
    old: JobRecord,
    cluster: Cluster,
    code: CodeRef | None,
    num_gpu: int | None,
    moved: MovedJob | None,
) -> JobSpec:
    run_id = new_run_id(context.environ)
    spec = old.spec
    array = str(spec.options.get("array") or "")
    tasks = read_array(array) if array and not spec.is_foreign else spec.tasks
    # The job's bounds, which it takes along; those of a context are the cluster file's.
    elastic = f"{spec.min_nodes}:{spec.max_nodes}" if spec.is_elastic else ""
    request = SubmitRequest(
        spec.argv, num_gpu, name=spec.name, multi_process=_several(spec), elastic=elastic, tasks=tasks
    )
    if spec.is_foreign:
        return _foreign_again(cluster, spec, request, run_id, code)
    request = replace(request, hold=str(spec.hold or ""))
    if cluster.name == spec.cluster and cluster.platform == spec.platform and not old.by:
        is_free = spec.after and _has_ended(context, spec.after)
        same = _with_options(spec, "recalled", "array", "locks", *(["after"] if is_free else []))
        same = replace(same, run_id=run_id, code=code, logs=find_mirror(cluster, run_id), tasks=tasks)
        if num_gpu is None:
            return same
        shape = shape_of(cluster, replace(request, options=spec.options))
        return replace(same, **shape._asdict())
    if moved:
        again = replace(request, argv=moved.translation.argv, num_gpu=num_gpu, nodes=moved.translation.nodes)
        spec = describe(cluster, replace(again, multi_process=None), run_id, code)
        # The record as it was: it has the names of secrets, whose values are recorded nowhere.
        spec = _with_options(spec, job_file=old.spec.options["job_file"])
        return replace(spec, secret_env=tuple(sorted({*spec.secret_env, *moved.secrets})))
    # Elsewhere nodes have another size, and folders are in other places; the command and the GPUs stay.
    if num_gpu is None:
        request = replace(request, num_gpu=_gpus(spec), nodes=spec.nodes if spec.is_elastic else None)
    return _with_own_variables(describe(cluster, request, run_id, code), spec)


def _with_own_variables(spec: JobSpec, old: JobSpec) -> JobSpec:
    """With the variables that were set for the old job alone; the values of secret ones are the cluster file's."""
    env = {name: old.env[name] for name in old.own_env if name in old.env}
    secret = {name for name in old.own_env if name in old.secret_env}
    kept = tuple(sorted({*spec.secret_env, *secret} - env.keys()))
    spec = replace(spec, env={**spec.env, **env}, secret_env=kept)
    return _with_options(spec, own_env=list(old.own_env)) if old.own_env else spec


def _left_behind(old: JobRecord, cluster: Cluster) -> tuple[str, ...]:
    """The note on what was changed for a job and stays behind when it moves; its size and variables are taken."""
    keys = sorted(old.home.overrides.keys() - {"num_gpu"}) if old.home and cluster.name != old.cluster else ()
    said = f"set for {old.run_id} with -p or options, and not taken to {cluster.name}: {', '.join(keys)}"
    return (said,) if keys else ()


def _has_ended(context: JobContext, run_id: str) -> bool:
    """Whether nothing has to wait for that job any more: it has ended, or is not known."""
    with suppress(JobNotFoundError):
        return refresh(context, [context.history.find(run_id)])[0].state.is_final
    return True


def _foreign_again(
    cluster: Cluster, old: JobSpec, request: SubmitRequest, run_id: str, code: CodeRef | None
) -> JobSpec:
    """Today's cluster file with what another program's job brought: its command, size, name, variables and limit."""
    if own := own_inputs(old):
        raise JobError(
            f"the command of {old.run_id} names {', '.join(own)}, which only that job has",
            hint="submit it again, with paths of the cluster file's folders",
        )
    asked = request.num_gpu if request.num_gpu is not None else _gpus(old)
    spec = describe(cluster, replace(request, num_gpu=asked), run_id, code)
    return replace(spec, env={**spec.env, **old.env}, timeout_s=old.timeout_s or spec.timeout_s)


def _several(spec: JobSpec) -> bool | None:
    """Whether the job runs once per GPU; None if it has at most one process and one GPU: then both are possible."""
    each = max(spec.procs_per_node, spec.workers_per_node)
    if spec.hold or (each == 1 and spec.gpus_per_node > 1):
        return False
    return True if spec.nodes * each > 1 else None


def _gpus(spec: JobSpec) -> int:
    # On Slurm, no number of GPUs also means that a partition or gres brings them.
    each = max(spec.gpus_per_node, spec.procs_per_node, spec.workers_per_node)
    is_one = each == 1 and (spec.nodes == 1 or spec.is_elastic)
    if is_one and not spec.gpus_per_node and spec.platform != "slurm":
        return 0
    return spec.nodes * each


def hand_over(
    context: JobContext, cluster: Cluster, spec: JobSpec, *, successor_of: str = "", origin: Cluster | None = None
) -> Submitted:
    """Grant its rights, record it, hand it over; ``origin`` is another cluster whose containers it needs."""
    if spec.has_checkpoints:
        spec = _with_options(spec, sealed_marks=True)
    if seen := _data_seen(context, cluster, spec):
        spec = _with_options(spec, locks=seen)
    backend, home = context.own_backend(cluster), home_of(cluster, context.environ)
    clusters = [cluster, *([origin] if origin else [])]
    spec, secrets, warnings = grant(spec, clusters, sas_minter(cluster, context.environ))
    secrets = with_job_keys(spec, secrets, context.environ, partial(_lineage_of, context))
    with cluster.naming_lines():
        plan = backend.plan(spec)
    archive = spec.node_archive
    if archive is not None and isinstance(parse_store_location(archive.container), BlobContainer):
        # It is beside the code, and the job has just been granted access to that: the account is known.
        account = known_accounts(clusters)[archive.container]
        with context.store(cluster, account) as store:
            publish(node_archive(context.environ), archive, store)
    # Recorded first: a job that was accepted just before we are killed must not get lost.
    record = context.history.add(spec, JobRef(spec.run_id, "", ""), backend.name, successor_of=successor_of, home=home)
    unknown = f"unknown whether it accepted {spec.run_id}"
    last = spec.run_id.rpartition("_")[2]
    looks = f"blobsync q {last} looks for it; submit again only if it shows that the cluster never received it"
    try:
        outcome = backend.submit(plan, secrets)
        if isinstance(outcome, Refused):
            context.history.remove(spec.run_id)
            raise outcome.error
        if isinstance(outcome, Unknown):
            raise SubmissionUnknownError(f"{outcome.error.message}; {unknown}", hint=looks) from outcome.error
        accepted = context.history.accept(record, outcome)
        share(context, [accepted])
    except KeyboardInterrupt as stop:
        raise StoppedError(f"interrupted while {cluster.name} was asked; {unknown}", hint=looks) from stop
    way_in: tuple[str, ...] = ()
    if spec.hold:
        way_in = (f"it waits {hold_text(spec.hold)} for you once it runs: {entering_command(spec.run_id)}",)
    if spec.hold and spec.image and spec.platform in ("local", "slurm"):
        way_in += (f"its shells are on the node itself, not in docker.image of {cluster.file}, {spec.image}",)
    return Submitted(accepted, warnings + cluster.job_notes + way_in)


def _data_seen(context: JobContext, cluster: Cluster, spec: JobSpec) -> Mapping[str, str]:
    """The digests of its locked folders by the paths of the locks, as far as they are known here.

    Nothing is listed for it: the container is taken to hold what it held at the last listing, with later transfers. So
    a folder that was never listed has no digest, nor has one with blobs whose MD5 is not known.
    """
    names = {folder.name for folder in spec.folders}
    if not (context.root / LOCK_FOLDER).is_dir():
        return {}
    found: dict[str, str] = {}
    index = Index(context.state.index_file)
    for entry in cluster.folders:
        records = index.pair(entry.prefix, str(entry.remote))
        for path in locks_in(context.root, entry.prefix) if entry.prefix in names else ():
            inner = path[len(entry.prefix) + 1 :]
            own = max((each for each in cluster.prefixes if is_below(path, each)), key=len)
            digest = known_digest(records, inner, ignored_by([(inner, entry.ignore)]))
            if own == entry.prefix and digest is not None:
                found[path] = digest
    index.close()
    return found


def _demand_same_data(context: JobContext, cluster: Cluster, spec: JobSpec, old: JobSpec) -> None:
    """Raise ``JobError`` unless all locked folders that ``old`` saw are known to be as it saw them."""
    then, now = old.options.get("locks") or {}, _data_seen(context, cluster, spec)
    if not then:
        raise JobError(
            f"{old.run_id} recorded no locked data", hint="blobsync lock PATH, before a job is submitted; omit --locked"
        )
    for path, digest in then.items():
        if now.get(path) != digest:
            word = shlex.quote(path)
            state = "has other files now" if path in now else "is not known to be the same: blobsync status --fresh"
            hint = f"blobsync diff REV {word} shows what has changed; 'git log aux_data/locks' the revisions"
            raise JobError(f"{path} {state}; {old.run_id} saw {digest[:12]}", hint=hint, path=path)
