"""The command line: arguments in; text or JSON, and an exit code, out.

It only presents results: in go arguments and a terminal, out comes one result. Uses all other packages.
"""
