"""Every Redis command and script; wake-ups, replicas.

Never: a decision.
"""
