"""The program on a compute node: prepares it, runs the job's processes, uploads their output.

    python -m blobsync.node prepare --job JOB.json --run-dir DIR      once per node: code, folders, setup commands
    python -m blobsync.node exec ...       once per process, started by srun or mpirun
    python -m blobsync.node node ...       once per node, starts the node's processes itself
    python -m blobsync.node finish ...     once per node: last uploads, then clean up
    python -m blobsync.node spread ...     a task of a transfer
    python -m blobsync.node here ...       the processes of one node with this terminal, in a folder that is ready

Decides each process's rank, how it is started, signalled and stopped, and what is uploaded. In:
the job's specification (``--job``, the JSON of ``jobspec.spec.JobSpec``) and its secrets (``--secrets``, that of
``jobspec.spec.Secrets``; a file that only the owner can read, and that is never logged). Out: logs,
uploads, an exit code: the program's own, 72 if the node could not be made ready, 73 if the program succeeded but
its outputs could not be uploaded. Data moves by the plan, the engine, the account and the fresh look of ``d`` and
``u`` (``plan``, ``direct``, ``transfer``). A container in the specification is a URL, or ``mounted:PATH``, a folder or
file of this node that stands for the blob or the folder of blobs (what Azure ML mounted).

Nodes run it from the node archive: pure Python 3.10, and urllib3 as the only dependency
(``tests/unit/test_node_imports.py``).
"""
