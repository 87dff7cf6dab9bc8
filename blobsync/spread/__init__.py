"""Spread transfers: several workers carry out one part of a plan; processes here, or tasks on cluster nodes.

Decides how a part is cut into shards, what workers are given and which of their answers are trusted. In: the files of
one part. Out: a report of each of them. Uses ``direct`` and ``store``.

    shard             a share of a part: how parts are cut, and the shard's file (JSON lines, without secrets)
    record            what a worker answers about one file
    file_json         validates names, sizes and states in shards and records
    verified_records  which files of a shard have a record, and which reports a look at both ends verifies
    orders            what a worker is given in private: its ends, the credentials, the limits
    worker_process    the worker's program: reads orders and shards, moves files, answers with records
    worker_pipe       the coordinator's end of its pipes
    process_engine    the engine that starts workers here, and counts their records

On the nodes of a cluster the same shards and records are documents of a store that all of them reach, and the
platform's own queue hands the shards out, as tasks of a job:

    shared_store      sealed blobs of the destination's container, or files of a folder
    task              one task there: reads its shard, moves it, writes one record
    spread_engine     the engine that has jobs of tasks move files, and verifies what they record
    claim             one command at a time for one destination
    probe             checks whether a node sees the same files
"""
