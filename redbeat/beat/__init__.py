"""One batch of a beat: planned, sent, recorded; and what happens when a beat starts.

Never: kombu, which is the broker's.
"""
