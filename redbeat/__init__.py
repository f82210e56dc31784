"""RedBeat: a Celery beat scheduler whose schedule lives in Redis or Valkey."""

from redbeat.declared.decorator import scheduled as scheduled
from redbeat.diagnostics import other_scheduler as other_scheduler  # connects to the start of beats
from redbeat.entries.entry import RedBeatSchedulerEntry as RedBeatSchedulerEntry
from redbeat.runs.tracking import track_runs as track_runs
from redbeat.schedulers import RedBeatScheduler as RedBeatScheduler

__all__ = ["RedBeatScheduler", "RedBeatSchedulerEntry", "scheduled", "track_runs"]
