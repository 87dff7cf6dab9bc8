"""Which data a job sees: the digests of its locked folders, as far as they are known here when it is submitted.

Nothing is listed for it: the container is taken to hold what it held at the last listing, with later transfers. So a
folder that was never listed has no digest, nor has one with blobs whose MD5 is not known.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from blobsync.base.errors import JobError
from blobsync.config.mapping import is_below
from blobsync.config.model import Cluster
from blobsync.config.project_root import LOCK_FOLDER
from blobsync.jobs.context import JobContext
from blobsync.jobspec.spec import JobSpec
from blobsync.local.index import Index
from blobsync.local.lock_files import locks_in
from blobsync.plan.locked_files import known_digest
from blobsync.plan.transfer_options import ignored_by


def data_seen(context: JobContext, cluster: Cluster, spec: JobSpec) -> Mapping[str, str]:
    """The digests by the paths of the locks."""
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


def demand_same_data(context: JobContext, cluster: Cluster, spec: JobSpec, old: JobSpec) -> None:
    """Raise ``JobError`` unless all locked folders that ``old`` saw are known to be as it saw them."""
    then, now = old.options.get("locks") or {}, data_seen(context, cluster, spec)
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
