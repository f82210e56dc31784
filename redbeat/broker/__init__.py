"""From a run to its queue: the producer, the outbox, and the guarantee with which a run is delivered.

Never: the keys of the schedule.
"""
