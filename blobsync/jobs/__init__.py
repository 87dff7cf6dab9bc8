"""Work on a computer or a cluster: what to run, where it runs, and what became of it."""
