"""Jobs on a computer or a cluster: what to run, where it runs, and its result.

Decides a job's specification and shape, its backend, and which of its states are confirmed. In: a command, a
cluster file. Out: a record in the history, logs, a state. Calls every room but ``project`` and ``cli``.
"""
