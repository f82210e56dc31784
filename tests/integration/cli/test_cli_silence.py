"""What a command says while Redis accepts connections and doesn't answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from celery import Celery

from redbeat.cli import silence
from redbeat.cli.session import Session
from tests.conftest import MakeApp
from tests.support.command_line import call


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"redis://me:secret@127.0.0.1:{listener.getsockname()[1]}/0"


def test_a_command_says_that_it_waits_before_it_gives_up(
    make_app: MakeApp, silent_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "LOOK_AFTER_SECONDS", 0.01)
    monkeypatch.setattr(silence, "ANSWER_SECONDS", 0.1)
    app = make_app(redbeat_redis_url=silent_url, redbeat_redis_options={"socket_timeout": 4})
    done = call(app, "list")
    assert done.exit_code == 69
    waits, error = done.stderr.splitlines()
    assert waits.startswith("Redis at redis://")
    assert waits.endswith("doesn't answer yet …")
    assert error.startswith("Error: ")
    assert "secret" not in done.output + done.stderr


@pytest.mark.parametrize("url", ["", "nonsense://"])
def test_nothing_is_said_of_a_server_that_answers_or_of_wrong_settings(
    make_app: MakeApp, app: Celery, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    silence.tell_if_silent(Session(make_app(redbeat_redis_url=url) if url else app, None, None, True))
    assert capsys.readouterr().err == ""


def test_the_help_of_a_command_asks_nobody(make_app: MakeApp, silent_url: str) -> None:
    app = make_app(redbeat_redis_url=silent_url)
    done = call(app, "list", "--help")
    assert (done.exit_code, done.stderr) == (0, "")
