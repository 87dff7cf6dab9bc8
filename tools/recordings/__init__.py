"""Recordings of a terminal for the docs: ``python -m tools.recordings`` writes ``docs/images/terminal-COLUMNS.svg``.

blobsync runs on a real pseudo-terminal of that width, against the emulator on a slow line; pyte says what the screen
shows at each moment, and the SVG shows the same, as it changes.
"""
