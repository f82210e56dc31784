"""What there is to say of a run besides its fields: why it wasn't sent or has failed, what it holds. Pure.

Invariant: as in :mod:`redbeat.entries.wording`.
"""

from __future__ import annotations

from datetime import datetime, tzinfo

from redbeat.entries.wording import in_words_of, one_line, when_in
from redbeat.history import PastRun, error_in_words
from redbeat.runs.progress import hold_in_words
from redbeat.runs.run import Run


def remark_on(run: Run, now: datetime, zone: tzinfo) -> str:
    """Return what is wrong with a run, and until when it holds its entry; '': nothing."""
    # a lease is renewed every few seconds: until when the present one lives says nothing
    hold = "" if run.state == "started" else hold_in_words(run, now)
    words = "; ".join(filter(None, (reason_of_run(run, zone), hold)))
    return in_words_of(one_line(words), zone)


def reason_of_run(run: PastRun | Run, zone: tzinfo) -> str:
    """Return why a run wasn't sent or has failed, and what else there is to say of it; '': nothing."""
    if run.last is not None:
        many = "" if run.count is None else f", {run.count} runs"
        return f"until {when_in(run.last, zone)}{many}: {run.why}"
    late = "" if run.late is None else f"it has ended later, as {run.late}"
    again = "" if run.rerun_of is None else f"a rerun of {run.rerun_of}"
    is_past = not (isinstance(run, Run) and run.is_running)
    attempt = f"attempt {run.attempt}" if is_past and (run.attempt or 1) > 1 else ""
    return "; ".join(filter(None, (error_in_words(run.error), run.why, late, again, attempt)))
