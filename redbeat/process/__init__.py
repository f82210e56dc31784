"""The process itself: signals held back, garbage collection paused, processor time limited, exit codes.

Never: the schedule.
"""
