"""The walk through `celery amqp` in docs/routing.rst does what the page shows, on a real RabbitMQ."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from tests.support.apps import celery_beat
from tests.support.command_line import run as run_command
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import Server

PAGE = (Path(__file__).parents[3] / "docs" / "routing.rst").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """The code blocks of the walk, without their indentation."""
    walk = PAGE.split("By hand: celery amqp\n")[1].split("Names of Celery 3")[0]
    found = re.findall(rf"\.\. code-block:: {language}\n(?:   :\w+: .*\n)?\n((?:    .*\n|\n)+)", walk)
    return ["\n".join(line[4:] for line in block.splitlines()) for block in found]


def steps() -> list[tuple[str, str]]:
    """Commands, and what the page shows of their output."""
    text = "\n".join(blocks("console"))
    return re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n?)*)", text, re.MULTILINE)


def test_the_walk_on_rabbitmq_prints_its_page(server: Server, rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    (tmp_path / "proj.py").write_text(blocks("python")[0])
    env = {"BROKER_URL": rabbitmq.url(), "REDIS_URL": server.url(1)}

    def run(command: str) -> str:
        words = shlex.split(command)
        assert words[0] == "celery"
        done = run_command([sys.executable, "-m", *words], tmp_path, env)
        assert done.returncode == 0, done.stderr
        return done.stdout.replace(f":{rabbitmq.port}//", ":5672//")

    taken = 0
    for command, shown in steps():
        if " beat " in command:  # in the foreground here: the test must end it
            with celery_beat(tmp_path, "proj", env=env) as beat:
                beat.wait_for("Sending due task greet")
                eventually(lambda: "messages:1" in run("celery -A proj amqp queue.declare testqueue"))
        else:
            output = run(command)
            for line in filter(None, shown.splitlines()):
                assert line in output, f"{command}: {output}"
                taken += 1
    assert taken > 15
