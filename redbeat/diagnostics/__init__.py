"""What is wrong with a schedule, why a run did or did not happen, where a message goes.

Never: a write, except in ``fixes`` and ``downgrade``.
"""
