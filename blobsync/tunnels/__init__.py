"""Ports of other machines that are opened on this one, at 127.0.0.1 alone.

``keeper`` runs the command line of a tunnel and starts it again; ``job_tunnel`` opens a port of a job's node, and
``node_apps`` what runs there beside the job; ``named`` and ``background`` are the tunnels with a name. The command
lines are in ``backends.forwarding``. Calls ``jobs``, ``backends`` and what these call.
"""
