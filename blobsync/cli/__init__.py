"""The command line: words in; text or JSON, and an exit code, out.

Decides how things are said, and nothing else. In: words and a terminal. Out: one answer. Calls every room.
"""
