"""What happens in the demo, and when. What is shown as typed is what is run."""

import shlex
from typing import Any, NamedTuple

import redis

TOLD_SECONDS = 15.0  # the story needs so long; in less time its steps move closer together


class Step(NamedTuple):
    at_seconds: float
    title: str
    python: str = ""
    commands: tuple[str, ...] = ()  # what to type after `redis-cli -p PORT`
    is_run: bool = True
    is_link: bool = False  # what is shown is the dashboard's link
    is_invitation: bool = False  # to stay

    def shown(self, port: int, link: str) -> list[str]:
        typed = [f"$ redis-cli -p {port} {command}" for command in self.commands]
        python = self.python.strip().replace("LINK", repr(link)) if not self.is_link else link
        return "\n".join([*python.splitlines(), *typed]).splitlines()

    def run(self, names: dict[str, Any], client: "redis.Redis") -> None:
        if self.is_run:
            exec(self.python, names)  # noqa: S102 - the text stands below
            for command in self.commands:
                client.execute_command(*shlex.split(command))


STEPS = (
    Step(
        0.0,
        "exampleconf.py has two entries in beat_schedule: an interval and a crontab",
        """
beat_schedule = {
    "every-two-seconds": {"task": "demo.tasks.say", "schedule": schedule(2.0), ...},
    "every-minute": {"task": "demo.tasks.say", "schedule": crontab(), ...},
}
""",
        is_run=False,
    ),
    Step(
        3.0,
        "Saved from Python, while beat runs",
        """
RedBeatSchedulerEntry(
    "hello", "demo.tasks.say", schedule(1.0), args=["saved from Python"], app=app
).save()
""",
    ),
    Step(
        6.0,
        "Written raw, as any program in any language can",
        commands=(
            """HSET redbeat:raw definition '{"name": "raw", "task": "demo.tasks.say",
    "schedule": {"__type__": "interval", "every": 2.5, "relative": false},
    "args": ["written with HSET and ZADD"], "kwargs": {}, "options": {}, "enabled": true}'""",
            "ZADD redbeat::schedule 0 redbeat:raw",
        ),
    ),
    Step(
        9.5,
        "Changed: other words, and every second",
        """
entry = RedBeatSchedulerEntry.from_key("redbeat:raw", app=app)
entry.args, entry.schedule = ["changed from Python"], schedule(1.0)
entry.save()
""",
    ),
    Step(
        12.5,
        "Deleted",
        """
RedBeatSchedulerEntry.from_key("redbeat:hello", app=app).delete()
""",
    ),
    Step(
        14.0,
        "Paused in the dashboard, by its form",
        """
visitor = Visitor(LINK)
visitor.fill_in("/entries/pause", name="raw", note="paused in the dashboard", confirmed="yes")
""",
    ),
    Step(
        TOLD_SECONDS,
        "Look around, or write an entry of your own; Ctrl-C ends it",
        commands=("ZRANGE redbeat::schedule 0 -1 WITHSCORES", "HGETALL redbeat:raw"),
        is_run=False,
        is_invitation=True,
    ),
    Step(
        TOLD_SECONDS,
        "The dashboard has all of it: open this link",
        is_run=False,
        is_link=True,
    ),
)
