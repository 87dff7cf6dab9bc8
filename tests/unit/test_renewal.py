"""A job that outlives its SAS: when it is renewed, and how nodes get the new one."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.backends.kubernetes.kubernetes_backend import KubernetesBackend
from blobsync.backends.kubernetes.replies import KubernetesJob, Pod, sweep_info
from blobsync.backends.protocol import Surroundings
from blobsync.base.errors import BackendUnavailableError, CredentialError
from blobsync.base.process import Completed
from blobsync.base.redaction import Secret
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.states import recent
from blobsync.jobspec.spec import FolderLink, JobRef, RunInfo, Secrets, State
from blobsync.node.job_stores import JobStores
from blobsync.store.sas import JOB_SECONDS
from tests.fakes.backend import FakeBackend
from tests.fakes.jobs import make_spec
from tests.fakes.runner import Call, ScriptedRunner
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

CONTAINER = "https://acct.blob.core.windows.net/cont"
RUN, NAME = "me_1_0badcafe", "me-1-0badcafe"
REF = JobRef(RUN, NAME, "ctx/train")


class Lapsing(FakeBackend):
    """A backend whose jobs need new secrets."""

    def __init__(self, problem: BackendUnavailableError | None = None) -> None:
        super().__init__()
        self.renewed: list[tuple[str, Secrets]] = []
        self.granted, self.problem = time.time() - JOB_SECONDS / 2 - 600, problem

    def get(self, refs: Sequence[JobRef]) -> tuple[RunInfo, ...]:
        return tuple(replace(info, granted=self.granted) for info in super().get(refs))

    def renew(self, ref: JobRef, secrets: Secrets) -> None:
        if self.problem:
            raise self.problem
        self.renewed.append((ref.run_id, secrets))


@pytest.fixture
def board_with(tmp_path: Path) -> Callable[[Lapsing], JobContext]:
    def make(fake: Lapsing) -> JobContext:
        files = ProjectFiles(tmp_path)
        key = base64.b64encode(b"k" * 32).decode()
        files.account("acct", f"account_name: acct\ncontainer_name: cont\naccount_key: {key}\n")
        files.cluster(
            "platform: local\nenv: {MY_TOKEN: hush}\n"
            "config_param:\n  code_path: {azure_blob_config_file: aux_data/configs/acct.yaml, path: code.zip}\n"
            "  output_folder: {azure_blob_config_file: aux_data/configs/acct.yaml, path: out, mode: upload}\n"
        )
        context = JobContext(tmp_path, NO_ENVIRON, backends={"aml": fake})
        spec = make_spec("sleep", "9", cluster="aml", secret_env=("MY_TOKEN",))
        (folder,) = context.cluster("aml").folders
        spec = replace(spec, folders=(FolderLink("output", str(folder.account.container), "out", "upload"),))
        fake.jobs[spec.run_id] = RunInfo(spec.run_id, State.RUNNING)
        context.history.add(spec, JobRef(spec.run_id, "1", ""), "fake")
        return context

    return make


def test_looking_at_a_job_renews_what_ends_before_long(board_with: Callable[[Lapsing], JobContext]) -> None:
    fake = Lapsing()
    context = board_with(fake)
    assert recent(context).problems == ()
    ((run_id, secrets),) = fake.renewed
    assert run_id == RUN and secrets.env == {"MY_TOKEN": "hush"}
    assert list(secrets.sas) == [CONTAINER] and "sig=" in secrets.sas[CONTAINER]
    fake.granted = time.time() - JOB_SECONDS / 2 + 600
    recent(context)
    assert len(fake.renewed) == 1


def test_a_renewal_that_fails_is_reported_and_the_state_is_shown(board_with: Callable[[Lapsing], JobContext]) -> None:
    context = board_with(Lapsing(BackendUnavailableError("nobody answers")))
    found = recent(context)
    (record,) = found.records
    assert record.info.state is State.RUNNING
    assert found.problems == (f"the SAS of {RUN} expires before long, and could not be renewed: nobody answers",)


class Keeping(FakeBackend):
    """A backend whose cluster keeps secrets until they are removed."""

    def __init__(self) -> None:
        super().__init__(name="kubernetes")
        self.removed: list[list[str]] = []
        self.problem: BackendUnavailableError | None = None

    def remove_secrets(self, refs: Sequence[JobRef]) -> None:
        self.removed.append([ref.run_id for ref in refs])
        if self.problem:
            raise self.problem


@pytest.fixture
def keeping(tmp_path: Path) -> tuple[JobContext, Keeping, Callable[[str, State], None]]:
    fake = Keeping()
    context = JobContext(tmp_path, NO_ENVIRON, backends={"here": fake})

    def add(run_id: str, state: State) -> None:
        spec = make_spec(run_id=run_id)
        fake.jobs[run_id] = RunInfo(run_id, state)
        context.history.add(spec, JobRef(run_id, "1", ""), "kubernetes")

    return context, fake, add


A, B = "me_1_0000000a", "me_2_0000000b"


def test_the_look_that_sees_the_end_of_a_job_removes_its_secrets_once(
    keeping: tuple[JobContext, Keeping, Callable[[str, State], None]],
) -> None:
    context, fake, add = keeping
    add(A, State.RUNNING)
    add(B, State.RUNNING)
    recent(context)
    assert fake.removed == []
    fake.jobs[A] = RunInfo(A, State.CANCELED)
    recent(context)
    recent(context)
    assert fake.removed == [[A]]


def test_secrets_that_could_not_be_removed_are_tried_again_and_a_silent_cluster_is_left_alone(
    keeping: tuple[JobContext, Keeping, Callable[[str, State], None]],
) -> None:
    context, fake, add = keeping
    add(A, State.COMPLETED)
    fake.problem = BackendUnavailableError("nobody answers")
    assert recent(context).problems == (f"cluster here still has the secrets of {A}: nobody answers",)
    # All have ended, so that the cluster gets no other request: the secrets are not removed each time.
    assert recent(context).problems == () and len(fake.removed) == 1
    add(B, State.RUNNING)
    fake.problem = None
    recent(context)
    recent(context)
    assert fake.removed == [[A], [A]]


def kubernetes(granted: float, calls: list[Call]) -> KubernetesBackend:
    notes = {"blobsync.dev/run-id": RUN, "blobsync.dev/released": "1", "blobsync.dev/renewed": str(int(granted))}
    job = {"metadata": {"name": NAME, "annotations": notes}, "spec": {"completions": 1}, "status": {"active": 1}}
    secret = {"kind": "Secret", "metadata": {"name": NAME, "resourceVersion": "7"}, "data": {"secrets.json": "b2xk"}}

    def answer(call: Call) -> Completed:
        calls.append(call)
        asked = call.argv[-1]
        body = secret if f"/secrets/{NAME}" in " ".join(call.argv) else {"items": [job]} if "/jobs?" in asked else {}
        return Completed(0, json.dumps(body), "")

    cluster = Cluster("c", "c.yaml", Path("/p"), platform="kubernetes", values={"kubernetes": {"image": "i"}})
    return KubernetesBackend(Surroundings(cluster, Path("/p/s"), {"PATH": ""}, ScriptedRunner(answer)))


def test_kubernetes_says_when_a_job_got_its_sas() -> None:
    granted = int(time.time()) - 600
    (info,) = kubernetes(granted, []).get([REF])
    assert info.granted == granted


def test_of_a_sweep_the_latest_sas_of_a_task_that_runs_counts() -> None:
    def task(number: int, granted: int, *ends: str) -> tuple[KubernetesJob, tuple[Pod, ...]]:
        notes = {"blobsync.dev/run-id": RUN, "blobsync.dev/task": str(number), "blobsync.dev/released": str(granted)}
        conditions = [{"type": end, "status": "True"} for end in ends]
        return KubernetesJob({"metadata": {"annotations": notes}, "status": {"conditions": conditions}}), ()

    tasks = [task(0, 500, "Complete"), task(1, 300), task(2, 400)]
    assert sweep_info(tasks, {}, lambda *words: "").granted == 400
    assert sweep_info(tasks[:1], {}, lambda *words: "").granted == 0


def test_a_new_version_of_the_secret_goes_by_standard_input() -> None:
    calls: list[Call] = []
    kubernetes(0, calls).renew(REF, Secrets({CONTAINER: "sig=SENTINEL"}))
    (replaced,) = [call for call in calls if "replace" in call.argv]
    body = json.loads(replaced.input or "")
    assert Secrets.from_json(body["stringData"]["secrets.json"]).sas == {CONTAINER: "sig=SENTINEL"}
    assert body["metadata"]["resourceVersion"] == "7", "somebody else's change is not overwritten"
    assert not any("SENTINEL" in word for call in calls for word in call.argv)
    assert any("blobsync.dev/renewed" in word for word in calls[-1].argv)


def test_a_node_takes_a_new_sas_from_the_file_that_the_first_one_came_from(tmp_path: Path) -> None:
    file = tmp_path / "secrets.json"
    file.write_text(Secrets({CONTAINER: "sv=1&sig=old"}).to_json())
    places = JobStores({CONTAINER: "sv=1&sig=old"}, {}, file)
    first = places.container(CONTAINER)
    assert places.sas(CONTAINER).reveal().endswith("sig=old") and places.container(CONTAINER) is not first
    file.write_text(Secrets({CONTAINER: "sv=1&sig=new"}).to_json())
    os.utime(file, ns=(1, 1))
    assert places.sas(CONTAINER).reveal().endswith("sig=new")
    # A file that is being written, or removed at the end of a job, changes nothing.
    file.write_text("{")
    assert places.sas(CONTAINER).reveal().endswith("sig=new")
    file.unlink()
    assert places.sas(CONTAINER).reveal().endswith("sig=new")
    with pytest.raises(CredentialError):
        places.sas("https://acct.blob.core.windows.net/other")


# -- the identity of the pod --------------------------------------------------------------------------------------

POD = {"AZURE_CLIENT_ID": "client", "AZURE_TENANT_ID": "tenant", "AZURE_FEDERATED_TOKEN_FILE": "/var/run/token"}
ENDS = 1_800_000_000.0
SAS = "sv=2023-11-03&se=2027-01-15T08:00:00Z&sr=c&sp=rl&sig=c2VudGluZWw="


def authorization(places: JobStores, container: str = CONTAINER) -> str:
    """The Authorization header of a request to the container: a bearer token, or none beside the SAS in the URL."""
    headers: dict[str, str] = {}
    places.container(container)._http.signer.sign("GET", "/cont/a", {}, headers)
    return headers.get("Authorization", "")


def by_identity(moment: float, sas: dict[str, str], environ: dict[str, str]) -> JobStores:
    return JobStores(sas, environ, identity=lambda _: lambda: (Secret("pod-token"), moment + 3600), now=lambda: moment)


def test_the_identity_of_the_pod_takes_over_when_the_sas_has_ended() -> None:
    moments = [ENDS - 3600]
    places = JobStores(
        {CONTAINER: SAS}, POD, identity=lambda _: lambda: (Secret("pod-token"), 4e9), now=lambda: moments[-1]
    )
    assert authorization(places) == ""
    moments.append(ENDS - 1)
    assert authorization(places) == "Bearer pod-token"


@pytest.mark.parametrize("missing", POD)
def test_without_a_whole_identity_the_sas_is_used_to_its_end(missing: str) -> None:
    environ = {name: value for name, value in POD.items() if name != missing}
    assert authorization(by_identity(ENDS + 1, {CONTAINER: SAS}, environ)) == ""


def test_the_identity_of_the_pod_is_shown_to_azure_only() -> None:
    elsewhere = "https://blobs.example.com/cont"
    places = by_identity(ENDS + 1, {elsewhere: SAS}, POD)
    assert authorization(places, elsewhere) == ""
    with pytest.raises(CredentialError, match="the job has no access to"):
        authorization(places, "https://other.example.com/cont")
    assert authorization(places, "https://acct.blob.core.windows.net/other") == "Bearer pod-token"


def test_an_image_without_azure_identity_is_told_so() -> None:
    def provide() -> tuple[Secret, float]:
        raise ImportError("No module named 'azure'")

    places = JobStores({CONTAINER: SAS}, POD, identity=lambda _: provide, now=lambda: ENDS + 1)
    with pytest.raises(CredentialError, match="has no azure-identity"):
        authorization(places)
