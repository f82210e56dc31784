"""The pages, one module for each: what it reads, what it shows, and what its buttons do.

Invariant: a page decides nothing about the schedule, and its buttons call verbs.
"""
