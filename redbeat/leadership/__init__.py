"""Who may write: the lock, its heartbeat, the election of a leader, and who that is.

Never: an entry.
"""
