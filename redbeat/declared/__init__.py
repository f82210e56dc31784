"""Schedules that stand beside their tasks in the code: ``@scheduled`` and what it has declared.

Never: Redis. What is declared becomes entries as those of ``beat_schedule`` do, by the beat that leads.
"""

from redbeat.declared.collection import declared_entries as declared_entries
from redbeat.declared.decorator import scheduled as scheduled
