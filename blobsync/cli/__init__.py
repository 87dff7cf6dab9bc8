"""The command line: words in, one answer out; everything else is the library."""
