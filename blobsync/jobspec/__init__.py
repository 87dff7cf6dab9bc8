"""The specification of a job, shared by submission, backends and nodes.

Decides a job's specification and topology, its code, its hold, the rights of its SAS, and the files for its nodes.
In: a cluster file and a request. Out: a ``JobSpec``, its ``Secrets``, the node archive. Calls ``base``, ``config``,
``local``, ``store``, ``code``, ``spread`` and ``plan``.
"""
