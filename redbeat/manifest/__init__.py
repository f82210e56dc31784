"""A schedule as a file: plan, apply, export, import.

Never: a running beat.
"""
