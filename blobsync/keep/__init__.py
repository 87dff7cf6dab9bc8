"""Uploads folders while programs write them, and knows when a set of files is complete.

Decides when a file is still, what is uploaded in a round, when a failed file is tried again, and how the keeper waits;
which sets of files are complete, which one a start takes, and which ones go. In: a folder, and what carries out an
upload. Out: rounds, each with what was found and done, and marks in the container. Used by ``node``, for
the outputs of a job, and by ``project``, for ``blobsync keep``. It travels to compute nodes: pure Python 3.10, and
``watchfiles`` is imported only where it is installed.

    keeper            settling, rounds, pauses after failures, and the stop
    round_plan        what happens to each file that may have changed, without a look at the others
    watcher           which files there are, and which have changed: told by the system, or found by walking
    checkpoint_sets   the rule of sets: complete or not, order, what stays, what a start takes; pure
    set_files         the files of a set on this disk
    set_uploads       uploads a set as one, marks it, lets old ones go
    restore           which set a start takes
    marks             what says in a container that a set is complete; read with distrust
    node_messages     what the nodes of a job say to each other about sets; read with distrust

Calls ``base``, ``config``, ``local``, ``store``, ``plan``, ``transfer`` and ``direct``.
"""
