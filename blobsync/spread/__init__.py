"""Spread transfers: several workers carry out one part of a plan; processes here, or programs on cluster nodes.

Decides how a part is cut into shards, what workers are given and which of their answers are trusted. In: the files of
one part. Out: a report of each of them. Uses ``direct`` and ``store``.

    shard           a share of a part: pure cutting, and its file (JSON lines, without secrets)
    record          what a worker answers about one file
    file_json       the gate that both pass: names, sizes, states from outside
    orders          what a worker is given in private: its ends, the credentials, the limits
    worker          the program: reads orders and shards, moves files, answers with records
    conversation    the other end of its pipes
    process_engine  the engine that starts workers here, and keeps the account of their shards

On the nodes of a cluster the same shards and records are files of a place that all of them reach:

    place           blobs of the destination's container, or a folder; claims on names
    hauler          a worker there: claims a shard, moves it, leaves records
    spread_engine   the engine that puts shards there, and keeps their account
    large_files     the account of files that are cut into ranges, and the commit of each
    presence        one parent at a time, and whether it lives
    probe           whether a node sees the same files
    shared_pace     what the storage account asks of one of them, all keep to
    earlier_records what workers told a parent that was killed, for the index
"""
