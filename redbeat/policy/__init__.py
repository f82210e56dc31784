"""What an entry's policy says about its schedule: windows, limits, jitter, missed runs, pauses.

Never: I/O.
"""

from redbeat.policy.policy import Policy as Policy
