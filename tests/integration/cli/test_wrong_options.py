"""Options of a wrong type, and credential providers that raise: a sentence and exit code 78 everywhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat import RedBeatSchedulerEntry
from redbeat.connection.client import AskedCredentials, get_redis
from redbeat.errors import ConfigurationError, StoreUnavailable
from redbeat.store.store import Store
from tests.support.apps import write_app
from tests.support.command_line import installed, run
from tests.support.servers import Server
from tests.support.ticks import memory_app

CELERY = [sys.executable, "-m", "celery", "-A", "project"]
SECRET = "s3cret-w0rd"
PROVIDERS = f"""
import redis
class Raises(redis.CredentialProvider):
    def get_credentials(self):
        raise RuntimeError("the vault has {SECRET}")
class Exits(redis.CredentialProvider):
    def get_credentials(self):
        raise SystemExit("the vault has {SECRET}")
class NoFile(redis.CredentialProvider):
    def get_credentials(self):
        return open("/no/such/secret").read()
class Wrong(redis.CredentialProvider):
    def get_credentials(self):
        return ["{SECRET}", ["{SECRET}"]]
"""
#: option, as source, to a part of the sentence
WRONG: dict[str, tuple[str, str]] = {
    "a list as password": (f"{{'password': ['{SECRET}']}}", "username and password are strings"),
    "a dict as username": (f"{{'username': {{'a': '{SECRET}'}}}}", "username and password are strings"),
    "a provider that raises": (
        "{'credential_provider': Raises()}",
        "its credential provider raised RuntimeError, Raises",
    ),
    "a provider that exits": (
        "{'credential_provider': Exits()}",
        "its credential provider raised SystemExit, Exits",
    ),
    "a provider without its file": (
        "{'credential_provider': NoFile()}",
        "raised FileNotFoundError (No such file or directory: /no/such/secret)",
    ),
    "a provider of lists": ("{'credential_provider': Wrong()}", "an option has a wrong value"),
    "text as provider": (f"{{'credential_provider': '{SECRET}'}}", "this text can't be imported"),
    "a list as client name": ("{'client_name': [1]}", "an option has a wrong value"),
    "an encoding that is none": ("{'encoding': 'nope'}", "unknown encoding: nope"),
}


def check_refused(server: Server, directory: Path, wrong: str, code: int, *command: str) -> str:
    """Return the errors of a command that is refused so, and tells no secret."""
    options, words = WRONG[wrong]
    extra = f"{PROVIDERS}\napp.conf.redbeat_redis_options = {options}\n"
    write_app(directory, "project", server.url(0), extra=extra, redbeat_redis_url=server.url(1))
    done = run([*CELERY, *command], directory, installed(directory))
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert words in output
    assert "Traceback" not in output
    assert SECRET not in output
    return done.stderr


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    "command", ["redbeat list", "redbeat singleton -- true", "beat -S redbeat.RedBeatScheduler"]
)
def test_it_is_a_sentence_and_exit_code_78(server: Server, tmp_path: Path, command: str, wrong: str) -> None:
    errors = check_refused(server, tmp_path, wrong, 78, *command.split())
    assert len([line for line in errors.splitlines() if "redbeat_redis_options" in line]) == 1


@pytest.mark.parametrize(("command", "code"), [("status", 78), ("doctor", 2), ("add a t --every 1h", 78)])
@pytest.mark.parametrize("wrong", ["a list as password", "a provider that raises"])
def test_other_commands_say_it_too(
    server: Server, tmp_path: Path, command: str, code: int, wrong: str
) -> None:
    check_refused(server, tmp_path, wrong, code, "redbeat", *command.split())


def test_a_singleton_s_options_too(server: Server, tmp_path: Path) -> None:
    options = json.dumps({"password": [SECRET]})
    program = [sys.executable, "-m", "redbeat.singleton", "--url", server.url(0), "--redis-options", options]
    done = run([*program, "--", "true"], tmp_path, installed(tmp_path))
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr


class Vault(redis.CredentialProvider):
    """Is away at times."""

    error: type[BaseException] = TimeoutError

    def __init__(self) -> None:
        self.is_away = False

    def get_credentials(self) -> Any:
        if self.is_away:
            raise self.error
        return ("default", "")


@pytest.mark.parametrize("error", [TimeoutError, SystemExit])
def test_a_provider_that_has_answered_once_is_away_when_it_raises(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """So that ``retry_period`` waits for it, and a beat at work doesn't end for it."""
    monkeypatch.setattr(Vault, "error", error)
    vault = Vault()
    options = {"credential_provider": vault}
    app = memory_app(redbeat_redis_url=server.url(1), redbeat_redis_options=options)
    client = get_redis(app)
    assert isinstance(client.connection_pool.connection_kwargs["credential_provider"], AskedCredentials)
    RedBeatSchedulerEntry("a", "t", 60, app=app).save()
    vault.is_away = True
    client.connection_pool.disconnect()
    with pytest.raises(StoreUnavailable, match=f"its credential provider raised {error.__name__}"):
        Store(app).vitals()
    vault.is_away = False
    assert Store(app).vitals().token == ""
    fresh = memory_app(
        redbeat_redis_url=server.url(1), redbeat_redis_options={"credential_provider": Vault()}
    )
    fresh.conf.redbeat_redis_options["credential_provider"].is_away = True
    for _ in range(2):  # no half-made connection is used
        with pytest.raises(ConfigurationError, match=f"raised {error.__name__}, Vault"):
            Store(fresh).vitals()
