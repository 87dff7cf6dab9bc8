"""Configuration: which folder lives where, and how clusters are reached.

Decides what each key of each file means, which project is used, which links and hosts are trusted, and to which
blob a path belongs (``mapping``). In: YAML files, options, the environment. Out: frozen values, or one error that
names file, line and key. Calls ``base``.
"""
