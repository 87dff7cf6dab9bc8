"""What tests rely on in the stand-in for Kubernetes, seen through the real kubectl."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import time
from typing import Any

import pytest

from tests.servers.kube.cluster import IMAGE, RealCluster, kubectl_path, stand_in
from tests.servers.kube_fixture import kube_cluster as kube_cluster
from tests.servers.recording_server import RecordingServer

# Of the stand-in alone, which the transcripts of a real server hold to account each time.
pytestmark = [pytest.mark.kubernetes, pytest.mark.soak]
_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_FINISHED = ("Complete", "Failed")


@pytest.fixture(scope="module")
def space(kube_cluster: RealCluster) -> str:
    return kube_cluster.new_namespace()


def job(name: str, script: str, *, size: int = 1, pod: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """An Indexed Job whose container ``main`` runs a shell script."""
    main = {"name": "main", "image": IMAGE, "command": ["sh", "-c", script]}
    more = dict(pod or {})
    main |= more.pop("main", {})
    template = {"subdomain": name, "restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [main]}
    whole = {"completionMode": "Indexed", "completions": size, "parallelism": size, "podReplacementPolicy": "Failed"}
    whole |= {"backoffLimit": 0, "template": {"spec": {**template, **more}}, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": whole}


def ended(cluster: RealCluster, name: str, space: str) -> dict[str, Any]:
    """The Job, as soon as it has finished."""

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = cluster.json("get", "job", name, "-n", space)
        kinds = [each["type"] for each in found["status"].get("conditions", [])]
        return found if set(kinds) & set(_FINISHED) else None

    found = cluster.until(look, f"{name} has finished")
    assert found is not None
    return found


def conditions(found: dict[str, Any]) -> list[str]:
    return [each["type"] for each in found["status"]["conditions"] if each["status"] == "True"]


def test_kubectl_asks_this_machine_without_a_proxy() -> None:
    kubectl = kubectl_path()
    assert kubectl
    answers = {"GET /version": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"}
    with RecordingServer(answers) as server, RecordingServer() as proxy:
        environ = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy.url)
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            argv = [kubectl, "--server", url, "get", "--raw", "/version"]
            done = subprocess.run(argv, env={**environ, "HOME": "/nonexistent"}, check=True, capture_output=True)
            assert done.stdout == b"{}"
    assert (len(server.requests), proxy.requests) == (2, [])


def test_a_job_of_two_indexes_runs_and_completes(kube_cluster: RealCluster, space: str) -> None:
    kube_cluster.create(job("two", 'echo "rank $JOB_COMPLETION_INDEX on $(hostname)"', size=2), space)
    found = ended(kube_cluster, "two", space)
    assert conditions(found) == ["SuccessCriteriaMet", "Complete"]
    assert (found["status"]["succeeded"], found["status"]["completedIndexes"]) == (2, "0,1")
    for index, pod in enumerate(sorted(each["metadata"]["name"] for each in kube_cluster.pods("two", space))):
        assert kube_cluster.kubectl("logs", "-n", space, pod).stdout == f"rank {index} on two-{index}\n"


def test_a_list_is_made_piece_by_piece_and_goes_with_its_owner(kube_cluster: RealCluster, space: str) -> None:
    owner = kube_cluster.create(job("owner", "trap 'exit 0' TERM; while :; do sleep 0.1; done"), space)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": owner["metadata"]["uid"]}
    kinds: dict[str, dict[str, Any]] = {
        "Secret": {},
        "PersistentVolumeClaim": {"spec": _CLAIM},
        "Service": {"spec": {"clusterIP": "None"}},
    }
    items = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "owned", "ownerReferences": [reference]}, **more}
        for kind, more in kinds.items()
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    made = kube_cluster.kubectl("create", "-n", space, "-f", "-", "-o", "name", stdin=text).stdout.split()
    assert made == ["secret/owned", "persistentvolumeclaim/owned", "service/owned"]
    kube_cluster.running("owner", 0, space)
    kube_cluster.kubectl("delete", "job", "owner", "-n", space, "--cascade=foreground")
    left = ("get", "pods,secrets,pvc,services", "-n", space, "--field-selector=metadata.name=owned", "-o", "name")
    assert kube_cluster.kubectl(*left).stdout == ""
    assert not kube_cluster.pods("owner", space)


def test_words_reach_the_program_as_they_are(kube_cluster: RealCluster, space: str) -> None:
    words = ["a b", "$HOME", ";", "$(UNKNOWN)", "$$(HOME)", "é", '"']
    script = "import sys; print(sys.argv[1:])"
    main = {"command": ["python3", "-c", script], "args": words}
    kube_cluster.create(job("words", "", pod={"main": main}), space)
    ended(kube_cluster, "words", space)
    shown = kube_cluster.kubectl("logs", "-n", space, "job/words").stdout
    assert shown == f"{[*words[:4], '$(HOME)', *words[5:]]}\n"


def test_pods_find_each_other_by_the_name_of_the_service(kube_cluster: RealCluster, space: str) -> None:
    port = 29533
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "ports": [{"port": port}]}
    service |= {"selector": {"batch.kubernetes.io/job-name": "dns"}}
    kube_cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "dns"}, "spec": service}, space)
    script = f"""
if [ $JOB_COMPLETION_INDEX = 0 ]; then
    exec python3 -c 'import socket; s = socket.create_server((socket.gethostname(), {port})); c = s.accept()[0]
print(c.recv(9).decode())'
fi
for i in $(seq 300); do
    python3 -c 'import socket
socket.create_connection(("dns-0.dns", {port}), 1).sendall(b"hello")' 2>/dev/null && exit 0
    sleep 0.2
done
exit 1"""
    kube_cluster.create(job("dns", script, size=2), space)
    assert conditions(ended(kube_cluster, "dns", space)) == ["SuccessCriteriaMet", "Complete"]
    first = kube_cluster.pod("dns", 0, space)
    assert first and kube_cluster.kubectl("logs", "-n", space, first["metadata"]["name"]).stdout == "hello\n"


def test_a_secret_is_a_file_and_its_changes_reach_the_pod(kube_cluster: RealCluster, space: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "one"}}
    kube_cluster.create(secret, space)
    script = "ls -lL /etc/bs/key | cut -c1-10; cat /etc/bs/key; echo; "
    script += 'while [ "$(cat /etc/bs/key)" = one ]; do sleep 0.1; done; echo $COPY; cat /etc/bs/key'
    mount = {"volumeMounts": [{"name": "s", "mountPath": "/etc/bs", "readOnly": True}]}
    mount |= {"env": [{"name": "COPY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}]}
    pod = {"main": mount, "volumes": [{"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}}]}
    kube_cluster.create(job("secret", script, pod=pod), space)
    pod_name = kube_cluster.running("secret", 0, space)
    read = ("logs", "-n", space, pod_name)
    kube_cluster.until(lambda: "one" in kube_cluster.kubectl(*read).stdout, "the first value has been read")
    patch = json.dumps({"stringData": {"key": "two"}})
    kube_cluster.kubectl("patch", "secret", "s", "-n", space, "--type=merge", "-p", patch)
    ended(kube_cluster, "secret", space)
    assert kube_cluster.kubectl(*read).stdout == "-r--------\none\none\ntwo"


def test_what_a_pod_writes_stays_in_the_pod(kube_cluster: RealCluster, space: str) -> None:
    stand_in(kube_cluster)
    script = "echo mine > /etc/hosts.of-a-pod; ls /etc/hosts.of-a-pod; echo $$$$"  # $$ is $ in a manifest
    kube_cluster.create(job("files", script, size=1), space)
    ended(kube_cluster, "files", space)
    assert kube_cluster.kubectl("logs", "-n", space, "job/files").stdout == "/etc/hosts.of-a-pod\n1\n"
    kube_cluster.create(job("files2", "ls /etc/hosts.of-a-pod", size=1), space)
    assert conditions(ended(kube_cluster, "files2", space)) == ["FailureTarget", "Failed"]


def test_exec_runs_a_command_in_the_pod(kube_cluster: RealCluster, space: str) -> None:
    kube_cluster.create(job("exec", "sleep 30"), space)
    pod = kube_cluster.running("exec", 0, space)
    script = 'cat; echo "$JOB_COMPLETION_INDEX $(hostname)"; echo bad >&2; exit 3'
    done = kube_cluster.kubectl("exec", "-n", space, "-i", pod, "--", "sh", "-c", script, stdin="typed\n", check=False)
    assert (done.returncode, done.stdout) == (3, "typed\n0 exec-0\n")
    assert done.stderr == "bad\ncommand terminated with exit code 3\n"
    kube_cluster.kubectl("delete", "job", "exec", "-n", space)
    kube_cluster.until(lambda: not kube_cluster.pods("exec", space), "the pod is gone")


def test_exec_gives_a_terminal_to_who_has_one(kube_cluster: RealCluster, space: str) -> None:
    kube_cluster.create(job("terminal", "sleep 30"), space)
    pod = kube_cluster.running("terminal", 0, space)
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    words = kube_cluster.argv("exec", "-n", space, "-it", pod, "--", "sh", "-c", "stty size; read line; exit ${#line}")
    environ = {**os.environ, **kube_cluster.environ}
    with subprocess.Popen(words, stdin=inner, stdout=inner, stderr=inner, env=environ) as process:
        os.close(inner)
        shown = b""
        while b"33 111" not in shown:
            shown += os.read(outer, 1000)
        os.write(outer, b"seven!!\n")
        assert process.wait(60.0) == 7
    os.close(outer)
    kube_cluster.kubectl("delete", "job", "terminal", "-n", space, "--wait=false")


def test_logs_are_followed_with_times_until_the_end(kube_cluster: RealCluster, space: str) -> None:
    kube_cluster.create(job("logs", "for i in 1 2 3 4 5; do echo $i; sleep 0.3; done"), space)
    pod = kube_cluster.running("logs", 0, space)
    followed = kube_cluster.kubectl("logs", "-n", space, "-f", "--timestamps", pod).stdout.splitlines()
    times, lines = zip(*(line.split(" ", 1) for line in followed), strict=True)
    assert lines == ("1", "2", "3", "4", "5") and list(times) == sorted(times)
    later = kube_cluster.kubectl("logs", "-n", space, f"--since-time={times[3]}", pod).stdout
    # kubectl sends whole seconds.
    assert later.splitlines() == [line for at, line in zip(times, lines, strict=True) if at[:19] >= times[3][:19]]
    assert kube_cluster.kubectl("logs", "-n", space, "--tail=1", pod).stdout == "5\n"
    refused = kube_cluster.kubectl("logs", "-n", space, "--previous", pod, check=False).stderr
    assert f'previous terminated container "main" in pod "{pod}" not found' in refused


def test_of_a_log_that_was_rotated_the_newest_file_alone_is_served(kube_cluster: RealCluster, space: str) -> None:
    cluster = stand_in(kube_cluster)
    cluster.rotate_logs(2000)
    try:
        script = "for i in $(seq 100); do echo line $i; done; sleep 1; for i in $(seq 101 130); do echo line $i; done"
        cluster.create(job("rotated", script), space)
        pod = cluster.running("rotated", 0, space)
        followed = cluster.kubectl("logs", "-n", space, "-f", "--since=1h", pod).stdout.splitlines()
        ended(cluster, "rotated", space)
        served = cluster.kubectl("logs", "-n", space, pod).stdout.splitlines()
    finally:
        cluster.rotate_logs()
    every = [f"line {number}" for number in range(1, 131)]
    assert 0 < len(served) < 50 and served == every[-len(served) :]
    # Who follows goes on from one file to the next.
    assert followed == every[-len(followed) :] and len(followed) > 30
    assert cluster.kubectl("logs", "-n", space, "--tail=100", pod).stdout.splitlines() == served


SAFE = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    "main": {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}},
}


def test_a_namespace_admits_the_pods_of_its_level_and_warns_of_a_job(kube_cluster: RealCluster) -> None:
    space = kube_cluster.new_namespace(enforce="restricted")
    warned = kube_cluster.kubectl("create", "-n", space, "-f", "-", stdin=json.dumps(job("loose", "true"))).stderr
    assert warned.startswith(
        'Warning: would violate PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "main" '
        'must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "main" must '
        'set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "main" must set '
        'securityContext.runAsNonRoot=true), seccompProfile (pod or container "main" must set '
        'securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
    )

    def told() -> str:
        found = kube_cluster.json("get", "events", "-n", space, "--field-selector=reason=FailedCreate")["items"]
        return str(found[0]["message"]) if found else ""

    said = kube_cluster.until(told, "the pod is refused")
    assert said.startswith('Error creating: pods "loose-0-')
    assert 'is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false' in said
    assert kube_cluster.pods("loose", space) == []
    safe = job("safe", "id -u; touch /etc/x || echo kept out", pod=SAFE)
    assert kube_cluster.kubectl("create", "-n", space, "-f", "-", stdin=json.dumps(safe)).stderr == ""
    ended(kube_cluster, "safe", space)
    lines = kube_cluster.kubectl("logs", "-n", space, "job/safe").stdout.splitlines()
    assert lines[0] == "1000" and lines[-1] == "kept out"


def test_a_pod_that_must_not_be_root_waits_where_its_image_is(kube_cluster: RealCluster, space: str) -> None:
    cluster = stand_in(kube_cluster)
    cluster.create(job("root", "id -u", pod={"securityContext": {"runAsNonRoot": True}}), space)

    def waiting() -> bool:
        pods = cluster.pods("root", space)
        states = pods[0]["status"].get("containerStatuses", []) if pods else []
        said = states[0]["state"].get("waiting", {}) if states else {}
        text = "container has runAsNonRoot and image will run as root"
        return said.get("reason") == "CreateContainerConfigError" and text in said["message"]

    cluster.until(waiting, "it says so")
    cluster.kubectl("delete", "job", "root", "-n", space, "--wait=false")


def test_the_api_server_restarts_with_what_it_had(kube_cluster: RealCluster, space: str) -> None:
    cluster = stand_in(kube_cluster)
    # It ends when it is told to: the server may be away for seconds.
    cluster.create(job("stays", "echo begun; until [ -e go-on ]; do sleep 0.1; done; echo done"), space)
    follow = cluster.argv("logs", "-n", space, "-f", cluster.running("stays", 0, space))
    environ = {**os.environ, **cluster.environ}
    following = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    assert following.stdout and following.stdout.readline() == "begun\n"
    before = cluster.json("get", "job", "stays", "-n", space)["metadata"]["uid"]
    started = time.monotonic()
    cluster.restart(down=0.5)
    assert time.monotonic() - started > 0.5
    assert "done" not in following.communicate()[0], "what was followed is cut"
    assert cluster.json("get", "job", "stays", "-n", space)["metadata"]["uid"] == before
    cluster.kubectl("exec", "-n", space, cluster.running("stays", 0, space), "--", "touch", "go-on")
    ended(cluster, "stays", space)
    assert cluster.kubectl("logs", "-n", space, "job/stays").stdout == "begun\ndone\n"
