"""The engines of this process: ``direct``, on the REST client, and ``relay``, from blob to blob through this machine.

Decide how many requests run at a time and how large they are. In: the files of one part of a plan. Out: a report of
each of them, with what the service itself said. Call the rooms of ``transfer``.
"""
