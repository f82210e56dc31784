"""What README.rst shows works as it stands there: the first steps, and the demo."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest
import redis

from demo.story import STEPS
from tests.support.apps import celery_beat
from tests.support.command_line import run
from tests.support.documents import ROOT
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE
from tests.support.servers import Server

README = (ROOT / "README.rst").read_text("utf-8")
EXAMPLES = [
    textwrap.dedent(block).strip()
    for block in re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", README, re.MULTILINE)
]


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


def test_the_first_steps_send_a_task_and_manage_an_entry(
    server: Server, broker: redis.Redis, tmp_path: Path
) -> None:
    application, *steps = EXAMPLES
    assert len(steps) >= 5
    (tmp_path / "proj.py").write_text(application.replace("redis://127.0.0.1:6379/0", server.url(0)))
    with celery_beat(tmp_path, "proj") as beat:
        beat.wait_for("Scheduler: Sending due task every-ten-seconds")
        eventually(lambda: broker.llen("celery"))
        seen = 'print(app.redbeat_redis.zscore("redbeat::schedule", "redbeat:greet"))'
        code = "\n".join([steps[0], seen, *steps[1:], seen])
        done = run([sys.executable, "-c", code], tmp_path)
        assert done.returncode == 0, done.stderr
        stored, gone = done.stdout.split()
        assert float(stored) > 0
        assert gone == "None"
        assert broker.zscore(SCHEDULE, "redbeat:every-ten-seconds") is not None
        assert beat.stop() == 0


def test_the_demo_tells_its_story_until_its_end() -> None:
    done = run([sys.executable, "-m", "demo", "--seconds", "20"], ROOT, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert re.search(r"http://127\.0\.0\.1:\d+/login\?token=\S+", done.stdout)
    assert re.search(r"raw .*none: paused", done.stdout), "the dashboard was at work"
    # the last step invites to stay, where there is no end
    assert [step.title for step in STEPS if not step.is_invitation and step.title not in done.stdout] == []
