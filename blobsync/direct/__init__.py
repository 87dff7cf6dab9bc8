"""The engines of this process: ``direct``, on the REST client, and ``relay``, from blob to blob through this machine.

Decides how many requests run at a time and how large they are. In: the files of one part of a plan. Out: a report of
each of them, with the service's response. Uses ``transfer``.
"""
