"""Spread transfers: several workers carry out one part of a plan; processes here, or programs on cluster nodes.

Decides how a part is cut into shards, what workers are given and which of their answers are trusted. In: the files of
one part. Out: a report of each of them. Uses ``direct`` and ``store``.

    shard             a share of a part: how parts are cut, and the shard's file (JSON lines, without secrets)
    record            what a worker answers about one file
    file_json         validates names, sizes and states in shards and records
    orders            what a worker is given in private: its ends, the credentials, the limits
    worker_process    the worker's program: reads orders and shards, moves files, answers with records
    worker_pipe       the coordinator's end of its pipes
    process_engine    the engine that starts workers here, and counts their records
    shard_account     which files of a shard have a record, and what this machine has verified

On the nodes of a cluster the same shards and records are documents of a store that all of them reach:

    shared_store      blobs of the destination's container, or a folder; claims on names
    sealed_store      seals the documents, so that those of strangers count as missing
    shard_worker      a worker there: claims a shard, moves it, writes records; pauses when another has to
    spread_engine     the engine that offers shards there, and counts their records
    large_files       files that are cut into ranges, and the commit of each
    coordinator_lock  one coordinator at a time, and its heartbeat
    probe             checks whether a node sees the same files
    earlier_records   records of workers whose coordinator was killed, for the index
"""
