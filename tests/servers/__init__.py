"""Servers that the tests and benchmarks put between blobsync and a blob service.

Each runs in a process of its own, listens on 127.0.0.1 and ends with the process that started it:

    copy_source_proxy   carries out Put Blob From URL and Put Block From URL, which Azurite lacks; counts payload
    fault_proxy         resets, stalls, refuses, cuts and flips, by a seed or by a script
    delay_proxy         a distant network: round trip, slow start, bandwidth
"""
