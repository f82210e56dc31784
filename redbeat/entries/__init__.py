"""``RedBeatSchedulerEntry``, and all that can be done with entries.

Never: a Redis command. Those are in ``store``.
"""
