"""Slurm: its commands, on this machine or on a login node over ssh."""
