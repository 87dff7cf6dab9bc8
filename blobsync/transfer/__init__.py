"""Carrying a plan out, and the only source of "success".

Decides what is verified: after the engines have moved the files, a fresh look at the destination is held against
the plan, file by file (``fresh_look``, ``ledger``); what failed is tried once more where that can help. In: a plan
and the engines that may carry it. Out: a ``TransferResult``, records in the index, a receipt. Calls the rooms of
``plan``.
"""
