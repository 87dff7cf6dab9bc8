"""What works on this checkout: its set-up, its checks, its mutation tests."""
