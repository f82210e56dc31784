"""The process: background threads, signals held back, memory, exit codes.

Never: the schedule.
"""
