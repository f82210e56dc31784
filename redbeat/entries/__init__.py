"""``RedBeatSchedulerEntry``, and all that can be done with entries.

Never: Redis commands, which are in ``store``.
"""
