"""What is wrong with a schedule, why a run did or did not happen, where a message goes.

Never: writes, except in ``fixes``, ``orphans`` and ``downgrade``.
"""
