"""Slurm: its commands, here or on a login node that ssh reaches."""
