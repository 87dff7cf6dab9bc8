"""The command line: arguments in; text or JSON, and an exit code, out.

Decides only how to present results. In: arguments and a terminal. Out: one result. Uses all other packages.
"""
