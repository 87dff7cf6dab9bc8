"""``submit``, ``local``, ``resubmit``, ``a``/``abort``, ``scale``, ``ssh`` and ``watch``: start and stop jobs.

The commands that show jobs are in ``jobs``. With ``-c a,b,c``, ``submit`` uses the first of these clusters that
has enough free GPUs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import BlobsyncError, UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text
from blobsync.cli.commands import ITS_NAME, NO_CLUSTER, Commands, argument, option
from blobsync.cli.jobs import (
    IdArgument,
    OptionalIds,
    accepted_data,
    cause_data,
    cause_lines,
    find_jobs,
    followed,
    job_data,
    newest_job,
    nodes_text,
    note_all,
    note_left_behind,
    planned_tasks,
    short_id,
    state_text,
)
from blobsync.cli.output import CommandInterruptedError, Result, cut
from blobsync.cli.session import Session, confirm, show_lines, with_consent
from blobsync.jobspec.submit_options import SubmitKeywords, read_pairs

if TYPE_CHECKING:
    from blobsync.jobs.first_free import Candidate
    from blobsync.jobs.record import JobRecord
    from blobsync.jobs.submit import Submitted
    from blobsync.project.jobs import Jobs


def choose(session: Session, asked: SubmitKeywords) -> Sequence[Candidate]:
    """Choose a cluster for the session, and say why; empty if ``-c`` names one cluster or none."""
    if session.cluster is None or "," not in session.cluster:
        return ()
    from blobsync.jobspec.make_spec import SubmitRequest
    from blobsync.project.jobs import first_free

    names = [name.strip() for name in session.cluster.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"-c {session.cluster}: an empty name, or one that is given twice")
    found = first_free(
        names, SubmitRequest.of(("true",), asked), environ=session.environ, overrides=session.overrides()
    )
    for one in found:
        session.note(one.sentence)
    session.cluster = next(one.cluster for one in found if one.chosen)
    return found


YesOption = Annotated[bool, option("-y", "--yes", help="Do not ask.")]
_COMMAND: Any = argument(metavar="CMD...", help="The command with its own options, or one quoted shell line.")


app = Commands()


@app.command("submit")
def submit(
    session: Session,
    asked: SubmitKeywords,
    cmd: Annotated[list[str] | None, _COMMAND] = None,
    wait: Annotated[
        bool,
        option("-F", "--follow", "--wait", help="Show the output until the end, exit with the job's exit code."),
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", help="Print what would be submitted, submit nothing.")] = False,
    file: Annotated[
        Path | None, option("--file", metavar="JOB", help="Run a job file of Azure Batch AI instead of CMD.")
    ] = None,
    cluster_file: Annotated[
        Path | None, option("--cluster-file", metavar="FILE", help="With --file: Batch AI's cluster file.")
    ] = None,
) -> Result:
    """Run a command on the cluster, with the code of the last init and the project's folders in place.

    Code at code_path that was not published from here runs only if you name its digest (--code, for one job) or trust
    it (--trust-code, or 'blobsync config trust-code').

    The command 'ssh' makes a job that waits for you instead; 'blobsync ssh ID' opens a shell in it.

    \b
      blobsync submit python train.py --data voc20        without quotes
      blobsync -c eu -n 16 submit --name big python train.py
      blobsync submit --env EPOCHS=20 --after 3f2a python eval.py
      blobsync -c eu,us,uni -n 16 submit python train.py  the first with 16 free
      blobsync submit --wait 'make && ./run.sh | tee output/log.txt'
      blobsync -n 8 submit --hold 4h ssh                  then: ssh ID
      blobsync submit --elastic 1:4 -- torchrun train.py  then: scale ID 3
      blobsync submit --sweep lr=0.1,0.01 --sweep seed=0..4 python train.py --lr {lr} --seed {seed}
      blobsync -c uni submit --file job.json --cluster-file cluster.json
    """
    asked["env"] = read_pairs(asked.get("env") or (), session.environ)
    gpus = asked.get("num_gpu")
    if gpus is not None and session.num_gpu not in (None, gpus):
        # -n is among the changes of the cluster file, where --gpus would win.
        raise UsageError(f"-n {session.num_gpu} and --gpus {gpus} are two numbers", hint="use only one of them")
    choice = choose(session, asked)
    words, jobs = _of_file(session, cmd, file, cluster_file, asked)
    result = _submitted(session, jobs, words, asked, dry_run=dry_run, wait=wait)
    if choice:
        result.data = {**result.data, "choice": [asdict(one) for one in choice]}
    return result


def _submitted(
    session: Session, jobs: Jobs, words: Sequence[str], asked: SubmitKeywords, *, dry_run: bool, wait: bool
) -> Result:
    if dry_run:
        plan = jobs.plan(words, **asked)
        note_all(session, jobs, (plan.asked, *plan.warnings))
        tasks = planned_tasks(plan.spec)
        data = {"plan": plan.text, "job_id": plan.run_id, **({"tasks": tasks} if tasks else {})}
        commands = [f"# task {one['index']}: {shlex.join(one['command'])}" for one in tasks]
        return Result(data, [*commands, *plan.shown.splitlines()], texts=True)
    submitted = jobs.submit(words, **asked)
    note_all(session, jobs, submitted.warnings)
    return _waited(session, jobs, submitted.record) if wait else _accepted(session, [submitted])


def _of_file(
    session: Session, cmd: list[str] | None, file: Path | None, cluster_file: Path | None, asked: SubmitKeywords
) -> tuple[Sequence[str], Jobs]:
    """The command and the jobs of the project; with ``--file``, those of the job file."""
    if file is None:
        if cluster_file:
            raise UsageError(
                "--cluster-file belongs to --file", hint=f"blobsync submit --file JOB --cluster-file {cluster_file}"
            )
        return cmd or (), session.project().jobs
    if cmd:
        raise UsageError("--file and a command are two jobs", hint="use only one of them")
    from blobsync.ancestors.convert import read_for
    from blobsync.config.loader import flattened, load_cluster
    from blobsync.jobspec.make_spec import demand_platform

    root = session.root()
    base = load_cluster(root, session.cluster, overrides=session.overrides(), environ=session.environ)
    demand_platform(base)
    found = read_for(base, file, cluster_file, session.environ)
    asked["nodes"] = asked.get("nodes") or found.nodes
    jobs = session.project(changes=flattened(found.values)).jobs
    note_all(session, jobs, found.notes)
    return found.argv, jobs


@app.command("local")
def local(session: Session, cmd: Annotated[list[str], _COMMAND]) -> Result:
    """Run a command here, in the foreground, with the environment that it would have as a job.

    In the cluster's docker image where the cluster file says use_custom_docker and docker is there. Options of
    docker.args that reach beyond the project need your word: 'blobsync config trust-docker'.

    \b
      blobsync local python train.py --data voc20
      blobsync -n 2 local python train.py    two processes with their ranks
      blobsync -n 0 local python train.py    one, without a GPU
    """
    if session.json:
        raise UsageError("local runs in the terminal, so it has no --json")
    project = session.project()
    return Result(exit_code=with_consent(session, project, lambda: project.jobs.run_here(cmd)))


@app.command("resubmit", takes=("cluster", "num_gpu"))
def resubmit(
    session: Session,
    ids: OptionalIds = None,
    to: Annotated[
        str | None, option("-t", "--resubmit-to", metavar="CLUSTER", help="Submit to this cluster instead.")
    ] = None,
    latest_code: Annotated[bool, option("--latest-code", help="Use the code of the last init.")] = False,
    locked: Annotated[bool, option("--locked", help="Only if the locked data is as the job saw it.")] = False,
    failed: Annotated[
        bool, option("--failed", help="All that failed and was not submitted again, of ID: its tasks; asks first.")
    ] = False,
    yes: YesOption = False,
) -> Result:
    """Submit recorded jobs again, with the code that they had; then cancel those that still run.

    Without an ID: the newest job. ID/7 is task 7 of a sweep. With -n, on another number of GPUs; -c is the same as -t.
    Of a job from the container, which another user or machine submitted, it shows what would run, and always asks.

    \b
      blobsync resubmit 3f2a
      blobsync resubmit 3f2a --failed
      blobsync resubmit 3f2a 77c0 -t eu -n 16
      blobsync resubmit --failed
    """
    jobs = find_jobs(session, resized=True)
    if to and session.cluster not in (None, to):
        raise UsageError(f"-c {session.cluster} and -t {to} are two clusters", hint="use only one of them")
    chosen = _failed(session, jobs, ids) if failed else _of_tasks(jobs, ids) or [(newest_job(session, jobs), None)]
    if not chosen:
        return _nothing(session, "nothing failed that was not submitted again")
    if failed and not ids and not yes:
        confirm(session, f"submit again {_named([each for each, _ in chosen])}?", looks="blobsync qf lists them")
    done = jobs.resubmit_all(
        chosen,
        cluster=to or session.cluster,
        num_gpu=session.num_gpu,
        latest_code=latest_code,
        locked=locked,
        agree=lambda lines: _agree_to_run(session, lines),
    )
    for one in done.submitted:
        note_all(session, jobs, one.warnings)
    return _accepted(session, done.submitted, done.errors)


def _agree_to_run(session: Session, lines: Sequence[str]) -> None:
    """Ask about a job from a container, whatever the options: no one has seen its command here."""
    if sys.stdin.isatty():
        show_lines(session, lines)
    confirm(session, "submit it?", hint="run this command on a terminal: it shows what would run, and asks")


def _of_tasks(jobs: Jobs, ids: Sequence[str] | None) -> list[tuple[JobRecord, list[int] | None]]:
    """Each job once, with the numbers of its tasks that were named, as in ``ID/7``; None: the whole job."""
    found: dict[str, tuple[JobRecord, list[int] | None]] = {}
    for id in ids or ():
        record, task = jobs.find_task(id)
        _, numbers = found.setdefault(record.run_id, (record, None if task is None else []))
        if (numbers is None) != (task is None):
            raise UsageError(f"{id}: the whole job, and one of its tasks")
        if numbers is not None and task is not None and task not in numbers:
            numbers.append(task)
    return list(found.values())


def _failed(session: Session, jobs: Jobs, ids: Sequence[str] | None) -> list[tuple[JobRecord, list[int] | None]]:
    """The jobs that failed, or of those that were named, with the failed tasks of each sweep."""
    found: list[tuple[JobRecord, list[int] | None]] = []
    for record in [jobs.find(id) for id in ids or ()] if ids else jobs.failed():
        tasks = jobs.failed_tasks(record)
        lost = [str(task.number) for task in jobs.find(record.run_id).tasks if task.state.value == "Unknown"]
        if lost:
            told = f"{count_text(len(lost), 'task')} whose end is not known: {', '.join(lost[:_NAMED])}"
            session.note(
                f"{short_id(record)}: not submitted again, {told}; blobsync resubmit {short_id(record)}/{lost[0]}"
            )
        if tasks:
            session.note(f"{short_id(record)}: {count_text(len(tasks), 'failed task')}: {', '.join(map(str, tasks))}")
            found.append((record, list(tasks)))
        elif tasks is None and ids:
            raise UsageError(f"{record.run_id} has no tasks: --failed is for those of a sweep", hint="omit --failed")
        elif tasks is None:
            found.append((record, None))
    return found


def _nothing(session: Session, sentence: str) -> Result:
    session.note(sentence)
    return Result({"jobs": []})


# So many jobs are named in a question.
_NAMED = 5


def _named(records: Sequence[JobRecord]) -> str:
    """``2 jobs: 3f2a (Running: python train.py), 77c0 (Queued: make)``."""
    shown = [f"{short_id(one)} ({one.state}: {cut(shlex.join(one.spec.argv), 40)})" for one in records[:_NAMED]]
    more = [f"and {len(records) - _NAMED:,} more"] if len(records) > _NAMED else []
    return f"{count_text(len(records), 'job')}: {', '.join([*shown, *more])}"


@app.command("a", takes=ITS_NAME)
def abort(
    session: Session,
    ids: OptionalIds = None,
    every: Annotated[
        bool, option("--all", help="All jobs of this project that have not ended; with -c: those on that cluster.")
    ] = False,
    yes: YesOption = False,
) -> Result:
    """Stop jobs; one that has ended stays as it is. Asks before it stops jobs that you did not name.

    Without an ID: the newest job. ID/7 is task 7 of a sweep.

    \b
      blobsync abort 3f2a
      blobsync abort 3f2a/7
      blobsync abort --all
    """
    jobs = find_jobs(session)
    if every and ids:
        raise UsageError(f"--all and {ids[0]} are two choices of jobs", hint="use only one of them")
    if not ids:
        ids = _chosen(session, jobs, every=every, yes=yes)
        if not ids:
            return _nothing(session, "no job is queued or running")
    done = jobs.cancel_all(_of_tasks(jobs, ids))
    data = {"jobs": [job_data(record) for record in done.records]}
    lines = [f"{record.run_id}: {state_text(record)}" for record in done.records]
    return Result(data, lines, done.errors, _code_of(done.errors, len(done.records)))


def _chosen(session: Session, jobs: Jobs, *, every: bool, yes: bool) -> list[str]:
    """The ids of the jobs to stop that the user did not name, once that was confirmed."""
    found = jobs.unfinished(cluster=session.cluster).records if every else (jobs.get(jobs.newest()),)
    going = [record for record in found if not record.state.is_final]
    if going and not yes:
        confirm(session, f"stop {_named(going)}?", looks="blobsync q lists them")
    return [record.run_id for record in found]


def _code_of(errors: Sequence[BlobsyncError], asked: int) -> int:
    """The exit code: if every job failed, that of the errors."""
    if not errors:
        return ExitCode.DONE
    if len(errors) < asked:
        return ExitCode.PARTIAL
    codes = {error.exit_code for error in errors}
    return codes.pop() if len(codes) == 1 else ExitCode.FAILED


@app.command("scale", takes=NO_CLUSTER)
def scale(
    session: Session,
    id: IdArgument,
    nodes: Annotated[int, argument(metavar="N", min=1, help="The number of nodes.")],
) -> Result:
    """Change the number of nodes of an elastic job while it runs, within its bounds.

    Node 0 stays; with fewer nodes, those with the highest numbers go. The last request counts. On Slurm a job can only
    become smaller.

    \b
      blobsync scale 3f2a 3
    """
    record = find_jobs(session).scale(id, nodes)
    return Result({"jobs": [job_data(record)]}, [f"{record.run_id}: {nodes_text(record)}"])


@app.command("ssh", takes=NO_CLUSTER)
def ssh(
    session: Session,
    id: IdArgument,
    node: Annotated[int, option("--node", min=0, metavar="K", help="Which node of the job.")] = 0,
    show: Annotated[bool, option("--show", help="Print the command instead of running it.")] = False,
) -> Result:
    """Open a shell where a job runs.

    On Azure ML this is 'az ml job connect-ssh', for jobs that were submitted with ssh_public_key.

    \b
      blobsync ssh 3f2a
      blobsync ssh 3f2a --node 1 --show
    """
    jobs = find_jobs(session)
    if show or session.json:
        argv = list(jobs.ssh_command(id, node=node))
        return Result({"command": argv}, [shlex.join(argv)])
    return Result(exit_code=jobs.ssh(id, node=node))


@app.command("watch", takes=NO_CLUSTER)
def watch(
    session: Session,
    id: IdArgument,
    retry: Annotated[int | None, option("--retry", min=0, metavar="N", help="The maximum number of retries.")] = None,
) -> Result:
    """Wait for a job's end; submit it again when the failure looks temporary, such as a faulty machine.

    Ends with the exit code of the last attempt. Without --retry, the cluster file's retries is taken.

    \b
      blobsync watch 3f2a --retry 3
    """
    jobs = find_jobs(session)
    record = jobs.find(id)
    attempts: list[dict[str, Any]] = []
    result = Result({"attempts": attempts}, live=True, texts=True)

    def tell() -> Iterator[str]:
        for attempt in jobs.watch(record, retries=retry):
            data = {**job_data(attempt.record), "causes": cause_data(attempt.causes), "next_job_id": attempt.next_id}
            attempts.append(data)
            yield f"{attempt.record.run_id}: {attempt.record.info.sentence}"
            yield from cause_lines(attempt.causes)
            if attempt.next_id:
                yield f"submitted again as {attempt.next_id}"
            result.exit_code = exit_code_of(attempt.record)

    result.lines = list(tell()) if session.json else tell()
    return result


def exit_code_of(record: JobRecord) -> int:
    """The exit code of a command that waits for a job: the job's own, or 1 if it has none."""
    from blobsync.jobspec.spec import State

    code = record.info.exit_code
    if record.info.state is State.COMPLETED:
        return ExitCode.DONE
    return code if code else ExitCode.FAILED


def _accepted(session: Session, submitted: Sequence[Submitted], errors: Sequence[BlobsyncError] = ()) -> Result:
    """The result for one job is that of ``submit``; for several it is a list. Below the id stands what comes next.

    Raises the error if the only job was not submitted.
    """
    if errors and not submitted and len(errors) == 1:
        raise errors[0]
    code = _code_of(errors, len(submitted) + len(errors))

    def say_next() -> int:
        if len(submitted) == 1:
            record = submitted[0].record
            short = short_id(record)
            session.note(f"next: blobsync q {short}" if record.tasks else f"next: blobsync logs {short} -F")
        return code

    answers = [accepted_data(one.record) for one in submitted]
    lines = [line for answer in answers for line in (answer["job_id"], answer["url"]) if line]
    data = answers[0] if len(answers) == 1 and not errors else {"jobs": answers}
    return Result(data, lines, errors, code, then=say_next)


def _waited(session: Session, jobs: Jobs, record: JobRecord) -> Result:
    """Print the job's log lines as they arrive; with --json only how it ended."""
    result = Result(accepted_data(record), live=True, texts=True)
    session.note(f"submitted {record.run_id} {record.ref.url}".rstrip())

    def end() -> None:
        ended = jobs.wait(record)
        result.data = {**accepted_data(ended), "exit_code": ended.info.exit_code, "reason": ended.info.reason}
        result.exit_code = exit_code_of(ended)
        if result.exit_code and not session.json:
            session.note(f"{ended.run_id}: {ended.info.sentence}")
        if not session.json:
            note_left_behind(session, ended, jobs.fetched_logs(ended))

    def tell() -> Iterator[str]:
        yield from followed(jobs, record)
        end()

    last = short_id(record)
    goes_on = CommandInterruptedError(
        f"the job {record.run_id} keeps running",
        hint=f"follow it: blobsync logs {last} -F; stop it: blobsync abort {last}",
    )
    if not session.json:
        result.lines, result.interrupted = tell(), goes_on
        return result
    try:
        end()
    except KeyboardInterrupt:
        raise goes_on from None
    return result
