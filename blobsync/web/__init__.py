"""The local web page: ``blobsync web``.

Decides who may look (``gate``, ``login``) and how results are shown (``pages``, ``templates``). In: requests of one
user's browser. Out: pages that hold nothing of their own. Calls ``project``, which the command line calls as well; a
transfer that is carried out has a process of its own (``carrier``). Needs the extra ``web``.
"""
