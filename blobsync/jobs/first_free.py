"""Which of several clusters a job goes to: the first with enough free GPUs, as their backends' summaries say.

``verdict`` decides, ``choose_cluster`` asks. A cluster that does not answer is passed over with its sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

from blobsync.backends.protocol import ClusterSummary
from blobsync.base.errors import BackendUnavailableError, BlobsyncError
from blobsync.base.formatting import count_text
from blobsync.base.records import dataclass
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobspec.make_spec import SubmitRequest, demand_platform, shape_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """One cluster of the choice: whether the job goes there, and why or why not.

    ``needed`` and ``free`` are GPUs, or nodes for a job without GPUs; None: unknown, or not asked.
    """

    cluster: str
    chosen: bool
    why: str
    needed: int | None = None
    free: int | None = None

    @property
    def sentence(self) -> str:
        """For people."""
        return f"cluster {self.cluster}: {self.why}"


def verdict(cluster: str, nodes: int, gpus_per_node: int, summary: ClusterSummary) -> Candidate:
    """Whether the job's GPUs are free there; a job without GPUs needs free nodes. Pure."""
    gpus = nodes * gpus_per_node
    noun, needed, free = ("GPU", gpus, summary.gpus_free) if gpus else ("node", nodes, summary.nodes_free)
    if free is None:
        return Candidate(cluster, chosen=False, why=f"does not say how many {noun}s are free", needed=needed)
    enough = free >= needed
    why = f"{count_text(free, noun)} free, {'enough for' if enough else 'and the job needs'} {needed}"
    return Candidate(cluster, enough, why, needed, free)


def choose_cluster(context: JobContext, clusters: Sequence[Cluster], request: SubmitRequest) -> tuple[Candidate, ...]:
    """The clusters in this order; the chosen one is the last that was asked, those behind it were not.

    Raises ``BackendUnavailableError`` where none has enough, ``ConfigError`` for a file that is wrong: a typing error
    must not send a job elsewhere.
    """
    found: list[Candidate] = []
    for cluster in clusters:
        name = cluster.name
        demand_platform(cluster)
        if any(one.chosen for one in found):
            found.append(Candidate(name, chosen=False, why="not asked: an earlier one has enough"))
            continue
        shape = shape_of(cluster, request)
        try:
            summary = context.backend(cluster).summary()
        except BlobsyncError as error:
            found.append(Candidate(name, chosen=False, why=f"did not answer: {error.message}"))
            continue
        found.append(verdict(name, shape.nodes, shape.gpus_per_node, summary))
    if not any(one.chosen for one in found):
        raise BackendUnavailableError(
            f"no cluster has enough free: {'; '.join(one.sentence for one in found)}",
            hint=f"to wait in the queue of one: blobsync -c {clusters[0].name} submit ...",
        )
    return tuple(found)
