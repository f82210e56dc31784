"""What is due is sent once, for its round trips and its memory: options `due`, `db`."""

from __future__ import annotations

import redis
from fill import fill
from subject import QUEUE, RoundTrips, lead, make_app, peak_rss_bytes, read_options, report, send_due

options = read_options()
app = make_app(options.server, options.db)
broker = redis.Redis.from_url(f"{options.server}0")
schedule = redis.Redis.from_url(f"{options.server}{options.db}")
round_trips = RoundTrips()
leader = lead(app)
#: how many entries are sent before
WARM_UP = 600

for _ in range(2):  # more than one batch, twice: then all connections stand
    fill(schedule, WARM_UP, is_due=True)
    send_due(leader)
fill(schedule, options.due, is_due=True)
broker.delete(QUEUE)
round_trips.count = 0
before_bytes = peak_rss_bytes()
send_due(leader)
peak_bytes = peak_rss_bytes()
report(
    round_trips=round_trips.count,
    sent=broker.llen(QUEUE),
    peak_rss_bytes=peak_bytes,
    gained_bytes=peak_bytes - before_bytes,
)
