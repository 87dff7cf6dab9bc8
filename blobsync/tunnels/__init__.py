"""Tunnels: forward ports of other machines to 127.0.0.1 of this one.

``tunnel_keeper`` runs and restarts the command of a tunnel; ``job_tunnel`` forwards a port of a job's node, also of
TensorBoard or Jupyter there; ``named`` are named tunnels. The command lines are in ``backends.port_forwarding``. Calls
``jobs``, ``backends`` and what these call.
"""
