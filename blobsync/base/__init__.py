"""Basic values and services: errors, locations, states of files, redaction, starting programs.

Makes no decisions about data. In: plain values. Out: values, errors, redacted text. Imports no other package.
"""
