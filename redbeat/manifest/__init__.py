"""A schedule as a file: plan, apply, export, import.

Never: anything of a running beat.
"""
