"""Changing into how many shards the schedule is divided, under running beats.

Never: a Redis command.
"""
