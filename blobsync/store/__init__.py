"""Blob containers: the protocol of a store, the REST client behind it, and the credentials that open it.

Decides which credential signs what, which host receives it, and what responses mean. In: storage accounts.
Out: stores, SAS tokens, errors of ours. Calls ``base``, ``config`` and ``local``.
"""
