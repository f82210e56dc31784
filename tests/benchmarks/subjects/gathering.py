"""What gathering for metrics takes: counting all entries by their states, and what is asked each second.

Options: `db`, `server_pid`, `limit_seconds`, `seldom`: how often Redis is asked after the count.
"""

from __future__ import annotations

from subject import lead, make_app, measure, read_options, report

options = read_options()
app = make_app(options.server, options.db, redbeat_http="127.0.0.1:1")  # nobody listens: no beat runs
leader = lead(app)
leader._shards.first.leadership.keep_alive()  # noqa: SLF001
gathering = leader._gathering  # noqa: SLF001
gathering.gather()  # connections stand, and scripts are loaded
gathering._parts = {}  # noqa: SLF001 - as if nothing had been gathered
times: list[None] = []


def count() -> None:
    while not gathering.views or gathering.views[0].states is None:
        gathering.gather()
        times.append(None)


def ask() -> None:
    for _ in range(options.seldom):
        gathering.gather()


counting = measure(count, options)
asking = measure(ask, options)
report(counting=counting, times=len(times), asking=asking, states=dict(gathering.views[0].states))
