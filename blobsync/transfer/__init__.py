"""Carries plans out; the only place that decides what counts as success.

Decides what is verified: after the engines have transferred the files, the destination is looked at again and compared
with the plan, file by file (``fresh_look``, ``ledger``); failures are retried once if that can help. In: a plan
and the engines that may carry it out. Out: a ``TransferResult``, records in the index, a receipt. Uses ``plan``.
"""
