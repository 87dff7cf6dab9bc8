from __future__ import annotations

import re

import pytest

from blobsync.jobs.failure_causes import CAUSES, is_retriable, read_causes, summarise

BARRIER = "    torch.distributed.distributed_c10d._default_pg.barrier()"


def codes(*lines: str) -> list[str]:
    return [finding.cause.code for finding in summarise(read_causes("std_log.txt", lines))]


@pytest.mark.parametrize(
    ("line", "code", "retriable"),
    [
        ("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", "OOM", False),
        ("torch.OutOfMemoryError: CUDA out of memory.", "OOM", False),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ECC", True),
        ("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu", "Init", True),
        ("RuntimeError: an illegal memory access was encountered", "illegal_access", False),
        ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL", "NCCLTimeout", True),
        ("ncclSystemError: System call (socket, malloc, munmap, etc) failed", "NCCLSocket", True),
        ("NCCL WARN Call to ibv_modify_qp failed with error Invalid argument", "IBVModifyQP", True),
        ("ORTE has lost communication with a remote daemon.", "ORTE_comm", True),
        ("mpirun has detected an attempt to run as root.", "MpiRoot", False),
        ("There are not enough slots available in the system to satisfy the 9", "MpiSlots", False),
        ("mpirun was unable to find the specified executable file, and therefore", "MpiStart", False),
        ("/var/spool/slurmd/job7/slurm_script: line 48: mpirun: command not found", "MpiStart", False),
        ("env: 'mpirun': No such file or directory", "MpiStart", False),
        ("The specified mapping policy is not recognized:", "MpiOption", False),
        ('mpirun: Error: unknown option "--nonsense"', "MpiOption", False),
        ("Open MPI has detected that a parameter given to a command line", "MpiOption", False),
        ("Primary job  terminated normally, but 1 process returned", "MpiAborted", False),
        ("slurmstepd: error: *** STEP 5.1 ON n1 CANCELLED AT 07:00 DUE TO PREEMPTION ***", "Preempted", True),
        ("node 0 was stopped (exit code 143): its pod was deleted, with kubectl delete pod", "PodDeleted", False),
        ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 07:00 DUE TO NODE FAILURE ***", "NodeFail", True),
        ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 07:00 DUE TO TIME LIMIT ***", "TimeLimit", False),
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "NoSpace", True),
        ("OSError: [Errno 5] Input/output error", "blobIO", True),
        ("OSError: [Errno 24] Too many open files", "TooMany", False),
        ("ModuleNotFoundError: No module named 'timm'", "ModuleErr", False),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", "FileNotFound", False),
        ("raise RuntimeError('NaN encountered!')", "NaN", False),
        ("RuntimeError: DataLoader worker (pid 77) is killed by signal", "Loader", False),
        ("Back-off pulling image: ImagePullBackOff", "Image", False),
        ("Reason: OOMKilled", "HostOOM", False),
        ("ErrorCode:AuthenticationFailed", "BlobAuth", False),
        ("bash: line 1: trian.py: command not found", "CommandNotFound", False),
        ("blobsync: this node could not be made ready: x", "Setup", False),
        ("2026-11-26T14:06:09Z not uploaded: 1 output file; the first: a\\\\b: left out", "NotUploaded", False),
        ("Failures: exitcode: -9 (pid: 12)", "Killed", False),
    ],
)
def test_known_messages(line: str, code: str, retriable: bool) -> None:
    findings = summarise(read_causes("std_log.txt", ["fine", line]))
    assert code in [finding.cause.code for finding in findings]
    found = next(finding for finding in findings if finding.cause.code == code)
    assert (found.line_number, found.cause.retriable) == (2, retriable)


def test_ordinary_lines_show_nothing() -> None:
    assert codes("epoch 3, loss 0.25, lr 1e-4", "saving output/model.pt", "Infinite scroll of information") == []


def test_failures_at_the_first_barrier_are_the_machines_fault() -> None:
    assert codes(BARRIER, "RuntimeError: CUDA error: out of memory") == ["Init"]
    assert codes(BARRIER, "RuntimeError: an illegal memory access was encountered") == ["init_access"]
    far_away = [BARRIER, *["step"] * 150, "RuntimeError: CUDA error: out of memory"]
    assert codes(*far_away) == ["OOM"]


def test_some_messages_count_only_when_they_come_often() -> None:
    waiting = "node 3 has not done sshd setup wait"
    assert codes(*[waiting] * 999) == []
    assert codes(*[waiting] * 1000) == ["waiting"]
    beat = "2026-11-21T07:00:00Z heartbeat: disk 5 of 9 GB free, load 1.0, GPU 100%/4000MB 100%/4000MB"
    assert codes(*[beat] * 128) == ["Hang"]
    idle = beat.replace("100%/4000MB 1", "0%/10MB 1")
    assert codes(*[idle] * 200) == []


def test_findings_of_several_logs_are_added_up() -> None:
    line = "ModuleNotFoundError: No module named 'x'"
    found = [*read_causes("a.txt", [line]), *read_causes("b.txt", ["", line, line])]
    (finding,) = summarise(found)
    assert (finding.log, finding.line_number, finding.count) == ("a.txt", 1, 3)


def test_one_retriable_cause_is_enough() -> None:
    assert is_retriable(read_causes("a", ["No module named 'x'", "ECC error"]))
    assert not is_retriable(read_causes("a", ["No module named 'x'"]))


def test_every_pattern_compiles_and_every_meaning_is_a_clause() -> None:
    for cause in CAUSES:
        re.compile(cause.pattern)
        assert cause.meaning and not cause.meaning.endswith(".")
