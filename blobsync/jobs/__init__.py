"""Work on a computer or a cluster: what to run, where it runs, and what became of it.

Decides a job's specification and shape, which backend has it, and what of its states is confirmed. In: a command, a
cluster file. Out: a record in the history, logs, a state. Calls every room but ``project`` and ``cli``.
"""
