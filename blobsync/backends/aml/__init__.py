"""Azure ML, ITP and Singularity, over REST."""
