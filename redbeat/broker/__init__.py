"""From a run to its queue: the producer, the outbox, and which guarantee a run gets.

Never: the keys of the schedule.
"""
