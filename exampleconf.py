"""A configuration to copy from. Try it as it stands, with a Redis or Valkey server running:

    celery --config exampleconf worker --loglevel INFO
    celery --config exampleconf beat -S redbeat.RedBeatScheduler --loglevel INFO

Every setting of RedBeat's own is shown with its default. Settings may also be written
in upper case, and carry a prefix if your application uses `config_from_object(..., namespace="CELERY")`.
"""

import os

from celery.schedules import crontab, schedule

# ---- Celery ------------------------------------------------------------------------------------------

broker_url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")

# Where the tasks are.
imports = ["demo.tasks"]

# With this, nobody has to type `celery beat -S redbeat.RedBeatScheduler`,
# or `celery worker -B --scheduler redbeat.RedBeatScheduler`.
# beat_scheduler = "redbeat.RedBeatScheduler"

# Entries that belong to the code. Beat stores them when it starts, keeps their history when they change,
# and removes those that are gone from here. All other entries are saved at run time, by any program.
# Or a schedule stands beside its task: `@redbeat.scheduled(every=2.0, args=("an interval",))`, docs/code.rst.
beat_schedule = {
    "every-two-seconds": {
        "task": "demo.tasks.say",
        "schedule": schedule(2.0),
        "args": ["an interval from beat_schedule"],
    },
    "every-minute": {
        "task": "demo.tasks.say",
        "schedule": crontab(),
        "args": ["a crontab from beat_schedule"],
    },
    # What else decides when an entry runs stands beside its schedule: docs/time.rst.
    # "mornings-in-berlin": {
    #     "task": "demo.tasks.say",
    #     "schedule": crontab(minute="30", hour="7", day_of_week="mon-fri"),
    #     "timezone": "Europe/Berlin",
    #     "max_runs": 10,
    #     "misfire": "skip",
    # },
    # So does what becomes of its runs: one at a time, overdue after ten minutes, none after three failures.
    # "one-at-a-time": {
    #     "task": "demo.tasks.say",
    #     "schedule": schedule(60.0),
    #     "overlap": "skip",
    #     "max_runtime": 600,
    #     "pause_after_failures": 3,
    # },
}

# ---- RedBeat: the server -----------------------------------------------------------------------------

# Where the schedule is kept. None: at `broker_url`.
# redbeat_redis_url = None

# Keyword arguments for the connection: `retry_period`, `password`, `sentinels`, `service_name`, `cluster` …
# None: those of `broker_transport_options` that RedBeat knows.
# redbeat_redis_options = None

# TLS, also for a `redis://` URL: True, or a dict of ssl_* options. None: the same as `broker_use_ssl` where
# the broker is Redis as well.
# redbeat_redis_use_ssl = None

# ---- RedBeat: the keys -------------------------------------------------------------------------------

# What every key starts with. Two applications on one database need two prefixes.
# redbeat_key_prefix = "redbeat:"

# Into how many shards the schedule is divided, so that several beats lead at once, each a share of them,
# and a cluster has them on all its nodes: 16 a node, or more. To change it use `celery redbeat reshard`.
# redbeat_shards = None

# What to do at start about a server that may evict the schedule when its memory is full:
# "ignore"; "warn" or "error", the level of the report in the log; or "raise", not to start at all.
# redbeat_key_expiry_check = "error"

# ---- RedBeat: one beat at a time ---------------------------------------------------------------------

# The key that the working beat holds while others stand by. None: no lock.
# redbeat_lock_key = "redbeat::lock"

# Seconds until the lock of a killed beat expires, 1 at least. None or 0: five times beat's `max_interval`.
# redbeat_lock_timeout = None

# Seconds after which a leader that doesn't renew its lock any more is replaced, 5 at least. None: never.
# redbeat_takeover_after = 8

# What a leader does when another beat has its lock: "exit", so that a supervisor starts it again; or
# "standby", to wait for the lock in place.
# redbeat_lock_lost = "exit"

# ---- RedBeat: the tick -------------------------------------------------------------------------------

# How many due entries are read, sent and recorded at a time, at most.
# redbeat_batch_size = 500

# How many bytes an entry may have in Redis, 8 MiB. A larger one isn't read, but quarantined.
# redbeat_max_entry_bytes = 1048576

# How many seconds before it is due a run is prepared, so that it leaves as soon as its time comes. 0 to 60;
# 0: never. It needs schedule and broker on one server, and messages that are compiled.
# redbeat_lookahead = 5

# Messages are made from templates where Celery would provably make the same ones, in a fraction of the time.
# False: Celery makes every message.
# redbeat_templates = "auto"

# How much memory beat may take to remember messages and when entries run, so that a run that is due
# again leaves quickly; bytes, about 2,000 an entry. 0: messages are made one by one.
# redbeat_message_cache_bytes = 67108864

# A run is never lost, and never doubled where schedule and broker are on one server. "at_most_once": a run is
# never doubled, and a crash, or a broker that is away, may lose it.
# redbeat_delivery = "exactly_once"

# What becomes of runs that nobody sent in time: "latest" (one for all), "all", "earliest" or "skip"; how many
# of them with "all"; and after how many seconds a run is too late.
# redbeat_misfire = "latest"
# redbeat_misfire_limit = 100
# redbeat_misfire_grace_time = None

# How many of an entry's last runs are kept beside it; 0: none.
# redbeat_history = 20

# Where Sentry is asked to monitor entries, beat itself tells it of their runs; False: Sentry's own code does.
# redbeat_sentry = True

# How many seconds a run counts as in progress after its worker last said so, where runs are tracked. A worker
# that is killed holds back its entries for that long; one that stands still for longer loses its runs.
# redbeat_run_lease = 30

# How many entries have metrics of their own; all others are counted together.
# redbeat_metrics_entries = 200

# Seconds after which beat stops waiting for the broker while it sends a batch.
# redbeat_publish_timeout = 10

# How many replicas of the schedule's server must have a batch before the next one is begun. It waits for one
# second at the most. A failover then undoes one batch at the most, instead of all that wasn't replicated.
# redbeat_wait_replicas = 0

# How beat's log is written: "celery", in Celery's own formats; or "json", a line of JSON for each record.
# redbeat_log_format = "celery"

# A URL that the leader calls each minute while all is well: a service such as Healthchecks raises the alarm
# when it doesn't. All isn't well while an entry is due for so many seconds and wasn't sent.
# redbeat_ping_url = None
# redbeat_ping_late_after = 60

# The hosts that may be called for entries with a ping_url: "hc-ping.com", "pings.local:8000" or
# "*.example.com".
# redbeat_ping_hosts = ()

# Of durable tasks: a message whose eta is further ahead than this is stored until then; seconds.
# redbeat_durable_after = 600

# Whose the entries of beat_schedule are, where several applications share a schedule: the app's main name, if
# nothing is set. Former names may follow in a list; what belongs to those is taken over.
# redbeat_statics_owner = None

# ---- RedBeat: what others see --------------------------------------------------------------------------

# Where a running beat answers over HTTP whether it lives, leads and is on time: "127.0.0.1:9808", or
# "unix:/run/redbeat/beat.sock". There is no password. None: nowhere.
# redbeat_http = None

# The names under which the dashboard may be asked for, besides localhost: "redbeat.example.com",
# "*.example.com" or "tower:8080".
# redbeat_web_hosts = ()

# The reverse proxies in front of it, whose X-Forwarded- headers count: "10.0.0.0/8", "::1", or "unix".
# redbeat_web_proxies = ()

# The tasks that it may run, and give to entries. Running a task is running code.
# redbeat_web_tasks = ("*",)

# The arguments of tasks that it doesn't show.
# redbeat_web_hide = ("*password*", "*token*")
