"""Job files of Azure Batch AI (API 2018-05-01), a service that is gone: read, translated, and written as ours.

``reader`` gives out the values of a file and remembers which were read; ``job_file`` and ``toolkits`` know what they
mean; ``translate`` turns them into keys of a cluster file and one command, on which ``submit --file`` and ``convert``
both stand. Nothing of a file is left out silently: each key is used, named in a note, or refused with its line.

Sources: https://github.com/Azure/azure-rest-api-specs (specification/batchai, stable/2018-05-01/BatchAI.json) and
https://github.com/Azure/BatchAI (schemas, recipes, using-batchai-environment-variables.md).
"""
