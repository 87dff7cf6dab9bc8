"""What every room stands on: errors, addresses, the states of files, redaction, and the one place that starts
programs.

Makes no decisions about data. In: plain values. Out: values, errors, redacted text. Imports no other package.
"""
