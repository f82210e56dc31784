"""The process: threads, signals held back, garbage collection paused, processor time limited, exit codes.

Never: the schedule.
"""
