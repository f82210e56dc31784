"""One batch of a beat: planned, sent, recorded; and what happens when a beat starts.

Never: a word of kombu.
"""
