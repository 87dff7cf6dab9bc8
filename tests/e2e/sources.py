"""What tests of sources outside Azure share: a bucket or a list as a cluster, and what has to be in no output."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.world import Done, Project, every_text_below
from tests.servers.s3 import KEYS, S3Server

MIB = 1 << 20
COPY = ("-c", "eu", "-f", "laion", "u", "data")


def configure(
    project: Project,
    server: S3Server,
    bucket: str,
    *,
    path: str = "far/data",
    trusted: bool = True,
    **more: Any,
) -> None:
    """A cluster ``laion`` whose data are in a bucket; ``trusted``: as the user's own configuration says."""
    project.environ.update(KEYS, AWS_CONFIG_FILE="/dev/null", AWS_SHARED_CREDENTIALS_FILE="/dev/null")
    project.environ.update(AWS_EC2_METADATA_DISABLED="true")
    if trusted:
        project.environ["BLOBSYNC_TRUSTED_BUCKETS"] = f"{server.url}/{bucket}"
    values = {"storage_type": "s3", "bucket": bucket, "endpoint": server.url, **more}
    file = project.root / "aux_data/configs/laion.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(values))
    cluster = {"config_param": {"data_folder": {"azure_blob_config_file": "aux_data/configs/laion.yaml", "path": path}}}
    (project.root / "aux_data/aml").mkdir(exist_ok=True)
    (project.root / "aux_data/aml/laion.yaml").write_text(yaml.safe_dump(cluster))


def fill(server: S3Server, bucket: str, files: Mapping[str, bytes], prefix: str = "far/data/") -> None:
    for name, body in files.items():
        server.put(bucket, prefix + name, body)


def receipt_of(done: Done) -> dict[str, dict[str, Any]]:
    found = json.loads(Path(done.data["receipt"]).read_text())
    return {each["path"]: each for each in found["files"]}


def no_secret_in(project: Project, *runs: Done) -> None:
    """No key and no signature in what was printed or written."""
    secret = KEYS["AWS_SECRET_ACCESS_KEY"]
    texts = [text.encode() for done in runs for text in (done.out, done.err)]
    texts += [text for _, text in every_text_below(project.root)]
    for text in texts:
        assert secret.encode() not in text
        assert not re.search(rb"X-Amz-Signature=[0-9a-f]{8}", text)
