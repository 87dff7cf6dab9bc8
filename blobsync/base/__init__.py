"""What every room stands on: errors, addresses, the states of files, redaction, and the one place that starts
programs.

Decides nothing about data. In: plain values. Out: values, errors, redacted text. Calls no other room.
"""
