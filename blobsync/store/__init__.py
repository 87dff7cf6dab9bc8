"""Blob containers: the protocol of a store, the REST client behind it, and the credentials that open it.

It chooses the credential for each request, checks the host that receives it, and interprets the responses. In: storage
accounts. Out: stores, SAS tokens, errors. Calls ``base``, ``config`` and ``local``.
"""
