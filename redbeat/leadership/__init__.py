"""Who may write: the lock, its heartbeat, the election of a leader, and the question who leads.

Never: entries.
"""
