"""azcopy as an engine: finding and installing it, its command lines, its messages, and driving it."""
