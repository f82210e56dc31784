"""Runs in progress: which there are, who holds them, and what became of them.

Owns the record of a run, the tracking by workers, and the decision that a run is lost or over its time.

Never: the schedule, and sending.
"""

from redbeat.runs.gate import is_mine as is_mine
