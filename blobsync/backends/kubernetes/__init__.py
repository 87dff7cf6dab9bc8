"""Kubernetes: a plain Indexed Job on any cluster that kubectl reaches."""
