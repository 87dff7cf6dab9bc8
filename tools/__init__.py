"""Tools for developers: set-up, checks, documentation, releases, mutation tests."""
