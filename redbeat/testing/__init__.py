"""For tests of one's own schedule: what would run, and a Redis and a clock for the test.

Owns ``simulate`` and ``assert_runs``, and what the fixtures of the pytest plugin (``pytest_redbeat``) do.
Invariant: what it says of a run is decided by beat's own functions.

Never: a Redis that isn't a test's own.
"""

from redbeat.testing.assertions import assert_runs as assert_runs
from redbeat.testing.simulation import entries_of as entries_of
from redbeat.testing.simulation import simulate as simulate
from redbeat.testing.trace import SimulatedRun as SimulatedRun

__all__ = ["SimulatedRun", "assert_runs", "entries_of", "simulate"]
