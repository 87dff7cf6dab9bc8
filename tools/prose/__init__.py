"""The language of what users read: README and the other pages of the top folder, ``docs/``, help, public docstrings.

``python -m tools.prose`` prints what is wrong, as ``./dev docs`` and ``./dev check`` do: a word that neither the
dictionary nor ``words.txt`` has, what proselint finds, a long word where a short one does, a very long sentence.
"""
