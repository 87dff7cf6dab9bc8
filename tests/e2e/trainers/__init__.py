"""Programs that train and write checkpoints: real frameworks, and the layouts of others played by a script."""
