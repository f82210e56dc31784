"""From a run to its queue: the broker, the producer, the outbox, message templates, and the guarantee.

Must not import ``scheduler``, ``entries`` or ``telemetry``. No message goes by the name of a key of the
schedule.
"""
