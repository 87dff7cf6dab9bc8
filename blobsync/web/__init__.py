"""The local web page: ``blobsync web``.

Decides who may look (``gate``, ``login``) and how results are shown (``pages``, ``templates``). In: requests of one
user's browser. Out: pages, which store nothing themselves. Calls ``project``, as the command line does. Needs the extra
``web``.
"""
