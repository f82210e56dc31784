"""Sentry's monitors of entries, and one check-in of each run.

Never: imports Sentry's SDK in a process that hasn't.
"""
