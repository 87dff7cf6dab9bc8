"""A form for submitting a job: its fields, their texts, and the submission that it describes.

Decides which fields a platform has, which mistake belongs to which field, and which command line does the same as a
filled form. In: texts by field name, a cluster file, a recorded job, a template's file. Out: a request for ``submit``,
or mistakes. The form has nothing that ``-c``, ``-n``, ``-p`` and the options of ``submit`` cannot.
"""
