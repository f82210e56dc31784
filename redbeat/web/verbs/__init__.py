"""What users of the dashboard and of its API can do: each checks a right, writes the audit list, does it.

The verbs have the names of the command line. Invariant: there is no other way from a request to a change.
"""
