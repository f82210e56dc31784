"""The HTTP endpoint of a running beat: whether it is alive and ready, the status, and the metrics.

Never: decides whether beat is well by anything but what beat itself has noted, but for the status.
"""
