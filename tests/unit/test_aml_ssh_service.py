"""ssh to a node of Azure ML: the answers of run history and ``az``, and the command lines. Not tried on Azure; the
answers have the form that the sources in ``ssh_service`` show."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends.aml.replies import AmlReply
from blobsync.backends.aml.ssh_service import find_az, machine_behind, read_address, tagged_machine
from blobsync.backends.port_forwarding import SshMachine, forward_line, machine_command
from blobsync.base.errors import BackendUnavailableError, JobError
from blobsync.base.process import Completed
from tests.fakes.runner import ScriptedRunner

ADDRESS = "wss://ssh-0abc.westus2.nodes.azureml.ms"
VERSION = """\
azure-cli                         2.78.0

Python location '/opt/az/bin/python3'
Config directory '/home/me/.azure'
Extensions directory '/home/me/.azure/cliextensions'

Python (Linux) 3.12.3
"""
AZ = ("/opt/az/bin/python3", "/home/me/.azure/cliextensions/ml/azext_mlv2/manual/custom/_ssh_connector.py")


def answer(**service: Any) -> AmlReply:
    whole = {"type": "SSH", "status": "Running", "properties": {"ProxyEndpoint": ADDRESS}, **service}
    return AmlReply({"instances": {"tb": {"type": "TensorBoard", "status": "Running"}, "my_ssh": whole}})


def test_the_address_of_a_nodes_ssh_service_is_read() -> None:
    assert read_address(answer(), "me_1_a", 0) == ADDRESS


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (AmlReply(), "node 2 of me_1_a has no ssh service"),
        (answer(type="VSCode"), "node 2 of me_1_a has no ssh service"),
        (answer(status="NotStarted"), "the ssh service of node 2 of me_1_a is NotStarted"),
        (answer(status=None), "the ssh service of node 2 of me_1_a is not there yet"),
        (answer(properties=None), "names no address"),
        (answer(properties={"ProxyEndpoint": "wss://host/$(id)"}), "names no address"),
        (answer(properties={"ProxyEndpoint": "ws://host"}), "names no address"),
        (answer(properties={"ProxyEndpoint": "wss://-oProxyCommand=x"}), "names no address"),
        (answer(properties={"ProxyEndpoint": "wss://me@host"}), "names no address"),
        (answer(properties={"ProxyEndpoint": f"{ADDRESS}\nx"}), "names no address"),
    ],
)
def test_a_service_that_cannot_be_used_is_reported_in_one_sentence(body: AmlReply, said: str) -> None:
    with pytest.raises(JobError, match=said):
        read_address(body, "me_1_a", 2)


def test_the_azure_cli_says_where_its_python_and_its_extensions_are(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="does not say where"):
        find_az(ScriptedRunner(lambda call: Completed(0, "azure-cli 2.0.1\n", "")), {})
    said = VERSION.replace("/home/me/.azure", str(tmp_path))
    runner = ScriptedRunner(lambda call: Completed(0, said, ""))
    with pytest.raises(BackendUnavailableError, match="no extension ml"):
        find_az(runner, {})
    connector = tmp_path / "cliextensions/ml/azext_mlv2/manual/custom/_ssh_connector.py"
    connector.parent.mkdir(parents=True)
    connector.touch()
    assert find_az(runner, {}) == ("/opt/az/bin/python3", str(connector))
    assert [call.argv for call in runner.calls] == [("az", "--version")] * 2


def test_ssh_goes_through_the_program_of_the_azure_cli() -> None:
    quiet = (
        *("-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"),
        *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
        *("-o", f"ProxyCommand={AZ[0]} {AZ[1]} {ADDRESS}"),
        *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
    )
    machine = machine_behind(AZ, ADDRESS)
    line = forward_line(machine, local=8888, remote=6006)
    assert line == ("ssh", "-N", "-T", *quiet, "-L", "127.0.0.1:8888:127.0.0.1:6006", "--", "azureuser@azureml-job")
    command = machine_command(machine, "python3", "-c", "print('a b')")
    assert command[:-1] == ("ssh", "-T", *quiet, "--", "azureuser@azureml-job")
    assert shlex.split(command[-1]) == ["python3", "-c", "print('a b')"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
def test_ssh_itself_reads_the_line_as_it_is_meant() -> None:
    odd = ("/opt/az 100%h/python3", AZ[1])
    line = forward_line(machine_behind(odd, ADDRESS), local=18888, remote=80)
    read = subprocess.run(["ssh", "-F", os.devnull, "-G", *line[1:]], capture_output=True, text=True, check=True)
    facts = dict(each.partition(" ")[::2] for each in read.stdout.splitlines())
    assert facts["proxycommand"] == f"'/opt/az 100%%h/python3' {AZ[1]} {ADDRESS}"
    assert (facts["user"], facts["hostname"], facts["batchmode"]) == ("azureuser", "azureml-job", "yes")
    assert facts["localforward"] == "[127.0.0.1]:18888 [127.0.0.1]:80"


def test_on_itp_the_address_is_in_a_tag() -> None:
    body = AmlReply({"properties": {"tags": {"ssh": "ssh://me@10.0.0.4:30022"}}})
    machine = tagged_machine(body)
    assert machine == SshMachine("10.0.0.4", "me", 30022)
    assert machine_command(machine, "python3", "-c", "print(1)")[-5:] == (
        *("-p", "30022", "--", "me@10.0.0.4"),
        "python3 -c 'print(1)'",
    )
    for other in ("ssh://-oProxyCommand=x@host:1", "ssh://me@-host:1", "ssh://me@host:1 extra", ""):
        assert tagged_machine(AmlReply({"properties": {"tags": {"ssh": other}}})) is None
