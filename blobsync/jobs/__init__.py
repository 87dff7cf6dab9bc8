"""Jobs on a computer or a cluster: submitting, watching, stopping, and what they wrote.

``service`` acts on jobs, ``queries`` looks at them; both use ``context``, with the history and the clusters of a
project's jobs. Decides which backend a job goes to, which of its states are confirmed, and why it failed. In: a
``JobSpec`` or a command with a cluster file. Out: a record in the history, logs, outputs, a state. Calls ``jobspec``,
``backends`` and what these call.
"""
