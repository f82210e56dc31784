"""The REST interface, ``/api/v1``: the verbs of the command line for programs.

Invariant: it takes bearer tokens alone, and every error is a problem document (RFC 9457).
"""
