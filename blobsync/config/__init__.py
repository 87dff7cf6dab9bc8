"""Cluster and account files: read, checked, and turned into values."""
