"""What a job is: the specification, and all that submitting, backends and nodes have to agree on.

Decides a job's specification and topology, its code, its hold, the rights of its SAS, and what travels to its nodes.
In: a cluster file and a request. Out: a ``JobSpec``, its ``Secrets``, the node archive. Calls ``base``, ``config``,
``local``, ``store``, ``code``, ``spread`` and ``plan``.
"""
