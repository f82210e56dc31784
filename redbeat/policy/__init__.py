"""What bounds a schedule: windows, limits, jitter, missed runs.

Never: I/O.
"""

from redbeat.policy.policy import Policy as Policy
