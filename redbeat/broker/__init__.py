"""From a run to its queue: the producer, the outbox, and the guarantee with which a run is delivered.

Never: a key of the schedule; no message goes by the name of one.
"""
