"""One part of a plan, carried out by several workers: processes here, or programs elsewhere that read the same files.

Decides how a part is cut into shards, what a worker may be told and what of its answers is believed. In: the files of
one part. Out: a report of each of them. Calls the rooms of ``direct`` and ``store``.

    shard           a share of a part: pure cutting, and its file (JSON lines, without secrets)
    record          what a worker answers about one file
    file_json       the gate that both pass: names, sizes, states from outside
    orders          what a worker is told in private: its ends, the credentials, the limits
    worker          the program: reads orders and shards, moves files, answers with records
    conversation    the other end of its pipes
    process_engine  the engine that starts workers here, and keeps the account of their shards
"""
