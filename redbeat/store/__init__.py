"""All Redis commands and scripts about the schedule; wake-ups, replicas.

Never: decisions.
"""
