"""Who may write: the lock, its heartbeat, how a beat becomes leader and what happens when it loses the lock.

Never: entries.
"""
