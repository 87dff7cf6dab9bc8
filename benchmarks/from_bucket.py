"""One copy from a bucket with each tool: ``python -m benchmarks.from_bucket [--rounds 3]``.

The bucket is in moto's server, the container in Azurite, behind a proxy that fetches from URLs as the service does.
What goes through this machine is counted there: the content that a tool itself sends. In the last round one bit of two
objects is another on the way: of one that has an MD5, and of one whose parts have no checksum of the whole.

azcopy knows only Amazon's hosts. So it is given one of their names, and a proxy with a certificate for it leads to
moto's server.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.emulator import ACCOUNT, Emulator, account_sas, emulator, installed_azcopy
from benchmarks.measure import run
from benchmarks.tools import Blobsync, Command, Place
from tests.servers.copy_source_proxy import CopySourceHandle, copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.servers.s3 import KEYS, S3Server, moto_server
from tests.servers.tls_front import TlsFront, tls_front

_MIB = 1 << 20
# The one that azcopy gets, and the one that its client asks then.
_AMAZON = ("s3.us-east-1.amazonaws.com", "s3.dualstack.us-east-1.amazonaws.com")
# With a dot, so that its name is no part of a host's.
_BUCKET, _FOLDER = "data.one", "far"
# One bit of them is another in the last round.
_DAMAGED = ("with-md5.bin", "parts.bin")
_AWS = {**KEYS, "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true"}


class Row(NamedTuple):
    """One tool. ``sent``: bytes of content through this machine."""

    tool: str
    seconds: float
    sent: int
    fetched: int
    damaged: str


def fill(server: S3Server, files: int) -> dict[str, bytes]:
    """Small objects, 64 MiB with an MD5, and 64 MiB in parts without a checksum of the whole."""
    server.make_bucket(_BUCKET)
    found = {f"small/{number:04}.bin": random.Random(number).randbytes(64 << 10) for number in range(files)}
    for name in ("with-md5.bin", "other.bin"):
        found[name] = random.Random(name).randbytes(64 * _MIB)
    for name, body in found.items():
        server.put(_BUCKET, f"{_FOLDER}/{name}", body)
    found["parts.bin"] = random.Random("parts").randbytes(64 * _MIB)
    halves = [found["parts.bin"][: 32 * _MIB], found["parts.bin"][32 * _MIB :]]
    server.put_parts(_BUCKET, f"{_FOLDER}/parts.bin", halves)
    return found


Make = Callable[[str], Command]


def tools(scratch: Path, bucket: str, endpoint: str, amazon: TlsFront) -> Mapping[str, Make]:
    """Each tool's command for a container. ``bucket`` is the URL of the service, ``endpoint`` that of the account."""
    ours, sas = Blobsync(scratch), account_sas()

    def blobsync(*words: str) -> Make:
        def command(container: str) -> Command:
            place = Place(endpoint, container, "base/far", scratch / container / "data" / "far", single=False)
            given = ["--source", f"s3://{_BUCKET}/{_FOLDER}", "--endpoint-url", bucket]
            project = ours.project(place)
            # The proxy's own requests are signed by it.
            account = project / "aux_data" / "configs" / "store.yaml"
            kept = [line for line in account.read_text().splitlines() if not line.startswith("account_key")]
            account.write_text("\n".join([*kept, f"sas_token: '{sas}'"]))
            return Command([*ours.program, "u", "data/far", *given, *words], _AWS, project)

        return command

    def azcopy(container: str) -> Command:
        url = f"{endpoint}/{container}/base/far?{sas}"
        words = ["cp", f"https://{_AMAZON[0]}/{_BUCKET}/{_FOLDER}", url, "--from-to=S3Blob", "--recursive"]
        words += ["--as-subdir=false", "--skip-version-check", "--log-level=ERROR"]
        logs = str(scratch / "azcopy-logs")
        where = {"AZCOPY_LOG_LOCATION": logs, "AZCOPY_JOB_PLAN_LOCATION": logs}
        line = {"HTTPS_PROXY": amazon.proxy, "SSL_CERT_FILE": str(amazon.certificate), "NO_PROXY": "127.0.0.1"}
        return Command([str(installed_azcopy()), *words], {**_AWS, **where, **line})

    def rclone(container: str) -> Command:
        config = scratch / "rclone.conf"
        config.write_text(
            f"[az]\ntype = azureblob\nsas_url = {endpoint}/{container}?{sas}\n"
            f"[s3]\ntype = s3\nprovider = Other\nenv_auth = true\nendpoint = {bucket}\n"
        )
        words = ["copy", f"s3:{_BUCKET}/{_FOLDER}", f"az:{container}/base/far", "--transfers", "64", "--checkers", "64"]
        words += ["--azureblob-no-check-container", "--s3-no-check-bucket", "--retries", "1"]
        program = Path(sys.executable).with_name("rclone")
        return Command([str(program), *words], {**_AWS, "RCLONE_CONFIG": str(config)})

    return {
        "blobsync": blobsync(),
        "blobsync --compare-content": blobsync("--compare-content"),
        "blobsync --engine relay": blobsync("--engine", "relay"),
        "azcopy": azcopy,
        "rclone": rclone,
    }


class Bench(NamedTuple):
    """Where all tools work, and what has to arrive."""

    scratch: Path
    server: Emulator
    copying: CopySourceHandle
    faulty: FaultHandle
    expected: Mapping[str, bytes]

    def measure(self, name: str, make: Make, rounds: int) -> Row:
        """Copy ``rounds`` times, and once with damage."""
        seconds, sent, fetched = [], [], []
        for _ in range(rounds):
            container, code, wall = self._once(make)
            wrong = self._wrong(container)
            if code or wrong:
                sys.exit(f"{name} ended with {code}; wrong: {wrong}\n{self._log.read_text(errors='replace')[-2000:]}")
            seconds.append(wall)
            stats = self.copying.stats()
            sent.append(stats.uploaded)
            fetched.append(stats.fetched)
        self.faulty.inject(*(Fault("flip_down", rate=1.0, pattern=f"{_FOLDER}/{each}") for each in _DAMAGED))
        container, code, _ = self._once(make)
        self.faulty.inject()
        wrong = self._wrong(container)
        said = [f"{each}: {'wrong bytes' if wrong.get(each) else 'no blob'}" for each in _DAMAGED if each in wrong]
        damaged = f"exit code {code}; {', '.join(said) or 'both right'}"
        return Row(name, statistics.median(seconds), max(sent), max(fetched), damaged)

    @property
    def _log(self) -> Path:
        return self.scratch / "output.log"

    def _once(self, make: Make) -> tuple[str, int, float]:
        container = self.server.new_container()
        self.copying.reset()
        command = make(container)
        sample = run(command.argv, env=command.env, cwd=command.cwd or self.scratch, log=self._log, server=None)
        return container, sample.exit_code, sample.wall

    def _wrong(self, container: str) -> dict[str, bool]:
        """What is not as in the bucket, and whether there is a blob of it."""
        there = self.server.container(container)
        found = {}
        for blob in there.list_blobs(name_starts_with="base/far/"):
            body = there.download_blob(blob.name).readall()
            found[blob.name.removeprefix("base/far/")] = hashlib.sha256(body).digest()
        right = {name: hashlib.sha256(body).digest() for name, body in self.expected.items()}
        return {name: name in found for name in right if found.get(name) != right[name]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.from_bucket", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=300, help="objects of 64 KiB, besides three of 64 MiB")
    parser.add_argument("--only", help="the tool")
    options = parser.parse_args(argv)
    with ExitStack() as held:
        scratch = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="blobsync-from-bucket-")))
        moto, server = held.enter_context(moto_server()), held.enter_context(emulator())
        expected = fill(moto, options.files)
        faulty = held.enter_context(fault_proxy(moto.url))
        outside = [faulty.url, *(f"https://{name}={faulty.url}" for name in _AMAZON)]
        copying = held.enter_context(copy_source_proxy(server.url, outside=outside))
        amazon = held.enter_context(tls_front(faulty.url, *_AMAZON))
        endpoint = f"{copying.url}/{ACCOUNT}"
        bench = Bench(scratch, server, copying, faulty, expected)
        total = sum(map(len, expected.values()))
        print(f"{len(expected):,} objects, {total / 1e6:,.0f} MB", flush=True)
        for name, make in tools(scratch, faulty.url, endpoint, amazon).items():
            if options.only in (None, name):
                row = bench.measure(name, make, options.rounds)
                print(
                    f"{row.tool}: {row.seconds:.1f} s; through this machine {row.sent / 1e6:,.1f} MB, fetched by the"
                    f" service {row.fetched / 1e6:,.1f} MB; damaged on the way: {row.damaged}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
