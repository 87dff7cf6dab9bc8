"""Ports of other machines that are opened on this one, at 127.0.0.1 alone.

``addresses`` is the gate for hosts, users and ports; ``lines`` are the command lines (pure); ``keeper`` runs one and
starts it again; ``job_tunnel`` opens a port of a job's node; ``named`` and ``background`` are the tunnels with a name.
"""
