"""The process itself: signals held back, garbage collection paused, processor time, exit codes.

Never: the schedule.
"""
