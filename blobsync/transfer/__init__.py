"""Carrying a plan out, and the only source of "success".

Decides what is verified: after the engines have transferred the files, a fresh look at the destination is compared with
the plan, file by file (``fresh_look``, ``ledger``); failures are retried once if that can help. In: a plan
and the engines that may carry it. Out: a ``TransferResult``, records in the index, a receipt. Calls the rooms of
``plan``.
"""
