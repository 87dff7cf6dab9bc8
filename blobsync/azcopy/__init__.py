"""azcopy as an engine: a managed, confined subprocess.

Decides which azcopy runs, what it is told, and what is believed of what it says: nothing that was not looked at.
In: the files of one part of a plan. Out: a report of each of them. Calls the rooms of ``transfer``, and ``direct``
for what azcopy got wrong.
"""
