"""Files of services that are gone, as what blobsync has today: Batch AI's job files and Philly's cluster files.

A reader gives values of a cluster file, one command, and plain parts of a job: variables, setup lines, words before the
command, folders of results. ``submit --file``, ``convert`` and the specification of a job ask it; nothing else knows
these services. No line of a file is left out silently: each key is used, named in a note, or refused with its line.
May call ``base`` and ``config``.

Sources: https://github.com/Azure/azure-rest-api-specs (specification/batchai, stable/2018-05-01/BatchAI.json) and
https://github.com/Azure/BatchAI (schemas, recipes, using-batchai-environment-variables.md).
"""
