"""The project's code as jobs get it: which files, how they are packed, where the archive goes."""
