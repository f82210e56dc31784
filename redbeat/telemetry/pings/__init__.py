"""Calls to services that raise the alarm when they aren't called: for the schedule, and for single entries.

Never: calls a host that an entry names unless the settings allow it.
"""
