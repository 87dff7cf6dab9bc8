"""This machine as a cluster of one node: a queue without a server, and a supervisor for each job."""
