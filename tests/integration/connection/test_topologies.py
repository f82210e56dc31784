"""Ways to reach Redis: URLs, passwords, providers, TLS, injected clients, forks."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from redis import credentials
from redis.credentials import UsernamePasswordCredentialProvider

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, StoreRefused, StoreUnavailable
from redbeat.schedulers import get_redis
from tests.faults.children import run_child
from tests.support.apps import celery_beat, celery_command, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.ticks import assert_entry_runs, memory_app

PASSWORD = "p@ss:w/rd#%"
QUOTED_PASSWORD = "p%40ss%3Aw%2Frd%23%25"


@pytest.fixture(scope="module")
def guarded_session() -> Iterator[Server]:
    """A server with a password, the user rick and a socket."""
    with Server("valkey", unix_socket=True, requirepass=PASSWORD) as server:
        with server.client() as client:
            client.execute_command("ACL SETUSER", "rick", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        yield server


@pytest.fixture
def guarded(guarded_session: Server) -> Server:
    guarded_session.flush()
    return guarded_session


# -- URLs and credentials


def test_schedule_is_on_the_broker_by_default(valkey: Server) -> None:
    assert_entry_runs(memory_app(broker_url=valkey.url(4)))
    assert valkey.client(db=4).exists("redbeat:report")


class Rick(UsernamePasswordCredentialProvider):
    """Knows the password."""

    def __init__(self) -> None:
        super().__init__("rick", PASSWORD)


class Silent(Rick):
    """Raises an error that quotes the password."""

    def __init__(self) -> None:
        raise RuntimeError(PASSWORD)


RICK = f"{__name__}.Rick"


@pytest.mark.parametrize(
    ("url", "options", "user"),
    [
        ("unix://:{password}@{path}?db=1", {}, "default"),
        ("redis+socket://:{password}@{path}?virtual_host=1", {}, "default"),
        ("redis://rick:{password}@{address}/1", {}, "rick"),
        ("redis://{address}/1", {"password": PASSWORD}, "default"),
        ("redis://{address}/1", {"username": "rick", "password": PASSWORD}, "rick"),
        ("redis://{address}/1", {"credential_provider": Rick()}, "rick"),
        ("redis://{address}/1", {"credential_provider": Rick}, "rick"),
        ("redis://somebody:else@{address}/1", {"credential_provider": RICK}, "rick"),
        (f"redis://{{address}}/1?credential_provider={RICK}", {"retry_period": 1}, "rick"),
    ],
)
def test_credentials_are_used_wherever_they_are_given(
    guarded: Server, url: str, options: dict[str, Any], user: str
) -> None:
    address = f"{guarded.host}:{guarded.port}"
    url = url.format(password=QUOTED_PASSWORD, path=guarded.socket_path, address=address)
    app = memory_app(redbeat_redis_url=url, redbeat_redis_options=options)
    assert_entry_runs(app)
    assert get_redis(app).acl_whoami() == user
    assert guarded.client(db=1).exists("redbeat:report")


def test_credential_provider_of_the_broker_is_used_for_a_schedule_on_it(guarded: Server) -> None:
    url = f"redis://{guarded.host}:{guarded.port}/1"
    options = {"broker_transport_options": {"credential_provider": RICK}}
    assert get_redis(memory_app(broker_url=url, **options)).acl_whoami() == "rick"
    with pytest.raises(StoreRefused, match="it needs a password"):
        RedBeatSchedulerEntry.from_key("redbeat:x", memory_app(redbeat_redis_url=url, **options))


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("no.such.module", r"'no.such.module' \(ModuleNotFoundError\)"),
        (PASSWORD, "this text"),
        (f"{__name__}.Silent", r"\.Silent' \(RuntimeError\)"),
        (7, "got 7"),
    ],
)
def test_unusable_credential_provider_is_a_configuration_error(provider: Any, said: str) -> None:
    options = {"credential_provider": provider}
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/1", redbeat_redis_options=options)
    words = f"redbeat_redis_options: credential_provider: must be a redis.CredentialProvider.*{said}"
    with pytest.raises(ConfigurationError, match=words) as caught:
        get_redis(app)
    assert PASSWORD not in str(caught.value)


PROVIDER = """
import contextlib
import os
import threading
import time

import redis
from redis.auth.token import SimpleToken
from redis.credentials import StreamingCredentialProvider

ADMIN = redis.Redis(host={host!r}, port={port}, db=0)


class Rotating(StreamingCredentialProvider):
    token, thread = "first", None

    def __init__(self):
        self.callbacks = []

    def on_next(self, callback):
        self.callbacks.append(callback)

    def on_error(self, callback):
        pass

    def get_credentials(self):
        if self.thread is None:
            self.thread = threading.Thread(target=self.rotate, daemon=True)
            self.thread.start()
        return "beat", self.token

    def is_streaming(self):
        return True

    def rotate(self):
        while True:
            time.sleep(0.2)
            count = ADMIN.incr(f"rotations:{{os.getpid()}}")
            before, self.token = self.token, f"token-{{os.getpid()}}-{{count}}"
            ADMIN.acl_setuser("beat", enabled=True, passwords=[f"+{{self.token}}"])
            now = time.time() * 1000
            for callback in list(self.callbacks):
                with contextlib.suppress(Exception):  # its connection has ended
                    callback(SimpleToken(self.token, now + 60_000, now, {{"oid": "beat"}}))
            if count > 1:
                ADMIN.acl_setuser("beat", enabled=True, passwords=[f"-{{before}}"])
            if count % 5 == 0 and is_ending:
                ADMIN.execute_command("CLIENT", "KILL", "USER", "beat")


provider, is_ending = Rotating(), True
"""
OPTIONS = """
app.conf.redbeat_redis_options = {{"credential_provider": provider, "protocol": {protocol}}}
"""
INJECTED = """
is_ending = False
app.redbeat_redis = redis.Redis(
    host={host!r}, port={port}, db=1, protocol={protocol}, credential_provider=provider
)
"""
ROTATIONS = 25


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(credentials, "StreamingCredentialProvider"), reason="redis-py is too old")
@pytest.mark.parametrize("given", [OPTIONS, INJECTED], ids=["as an option", "in an injected client"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_rotating_credentials_end_no_beat_and_wake_ups_still_arrive(
    server: Server, tmp_path: Path, protocol: int, given: str
) -> None:
    with server.client() as admin:
        rights: dict[str, Any] = {"keys": "*", "channels": "*", "categories": ["+@all"]}
        admin.acl_setuser("beat", enabled=True, passwords=["+first"], **rights)
        source = (PROVIDER + given).format(host=server.host, port=server.port, protocol=protocol)
        url = f"redis://{server.host}:{server.port}/1"
        write_app(tmp_path, "module", server.url(0), extra=source, redbeat_redis_url=url)
        with celery_beat(tmp_path, "module") as first:
            first.wait_for("beat: Acquired lock")
            with celery_beat(tmp_path, "module") as second:
                beats = [first, second]

                def are_rotated() -> bool:
                    assert all(beat.is_running for beat in beats), [beat.output() for beat in beats]
                    counts = [admin.get(f"rotations:{beat.pid}") for beat in beats]
                    return all(int(count or 0) >= ROTATIONS for count in counts)

                eventually(are_rotated, timeout=60)
                eventually(lambda: admin.publish("redbeat::wake", "x") == 2)
        for beat in beats:
            assert beat.returncode == 0
            assert not has_traceback(beat.output()), beat.output()
        admin.acl_deluser("beat")


# -- TLS


def tls_settings(tls: Server, place: str) -> dict[str, Any]:
    """Return settings that name the authority in one of five places."""
    assert tls.certificates
    url, plain = tls.url(1), tls.url(1).replace("rediss:", "redis:")
    ca, use_ssl = str(tls.certificates.ca), {"ssl_ca_certs": str(tls.certificates.ca)}
    required = {**use_ssl, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return {
        "url": {"redbeat_redis_url": f"{url.replace('rediss:', 'valkeys:')}?ssl_ca_certs={ca}"},
        "options": {"redbeat_redis_url": url, "redbeat_redis_options": use_ssl},
        "redbeat_redis_use_ssl": {"redbeat_redis_url": plain, "redbeat_redis_use_ssl": required},
        "broker_use_ssl": {"broker_url": url, "broker_use_ssl": required},
        "not verified": {"redbeat_redis_url": f"{url}?ssl_cert_reqs=none"},
        "broker, not verified": {"broker_url": url, "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE}},
    }[place]


@pytest.mark.parametrize(
    "place",
    ["url", "options", "redbeat_redis_use_ssl", "broker_use_ssl", "not verified", "broker, not verified"],
)
def test_tls_is_set_up_from_url_options_or_use_ssl(tls: Server, place: str) -> None:
    assert_entry_runs(memory_app(**tls_settings(tls, place)))


@pytest.mark.parametrize("knows_another", [False, True], ids=["no authority", "another authority"])
def test_unverifiable_certificate_is_refused(tls: Server, knows_another: bool) -> None:
    assert tls.certificates
    options = {"ssl_ca_certs": str(tls.certificates.stranger_ca)} if knows_another else {}
    app = memory_app(redbeat_redis_url=tls.url(1), redbeat_redis_options=options)
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()


@pytest.mark.services
def test_client_certificate_is_presented_to_a_server_that_wants_one(tls: Server) -> None:
    with Server("redis", tls=True, tls_auth_clients=True) as strict:
        assert strict.certificates
        files = {
            "ssl_ca_certs": str(strict.certificates.ca),
            "ssl_certfile": str(strict.certificates.cert),
            "ssl_keyfile": str(strict.certificates.key),
        }
        assert_entry_runs(memory_app(redbeat_redis_url=strict.url(), redbeat_redis_use_ssl=files))


# -- one client for each app and process


def test_app_has_one_client_made_at_its_first_use(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(1), redbeat_redis_options={"client_name": "the-only"})
    entry = RedBeatSchedulerEntry("report", "tasks.report", 60, app=app)
    assert getattr(app, "redbeat_redis", None) is None, "a child made by fork would share its connections"
    entry.save()
    client = app.redbeat_redis
    assert_entry_runs(app)
    assert get_redis(app) is client
    names = [connection["name"] for connection in valkey.client().client_list()]
    assert names.count("the-only") == 1, "each command is sent when the one before is done"


def test_parent_and_child_of_a_fork_reach_the_schedule(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(1))

    def save(writer: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            RedBeatSchedulerEntry(f"{writer}-{number}", "tasks.report", 60, app=app).save()

    save("before", [0])
    own = iter(range(200))
    assert run_child(lambda: save("child", range(200)), lambda: save("parent", islice(own, 1))) == 0
    save("parent", own)
    assert valkey.client(db=1).zcard("redbeat::schedule") == 401


REPLACED = """
import redbeat.schedulers

given = redis.Redis(host={host!r}, port={port}, db=3)
redbeat.schedulers.get_redis = lambda app=None: given
Scheduler = redbeat.schedulers.RedBeatScheduler
"""


CHOSEN = """
from redbeat import RedBeatScheduler


class Scheduler(RedBeatScheduler):
    def setup_schedule(self):
        self.app.redbeat_redis = redis.Redis(host={host!r}, port={port}, db=3)
        super().setup_schedule()
        self.update_from_dict({{"own": {{"task": "echo", "schedule": 60}}}})
"""


@pytest.fixture
def unwanted() -> Iterator[socket.socket]:
    """Listen at the address that the settings name: no connection may arrive."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.setblocking(False)
        yield listening


@pytest.mark.parametrize("source", [REPLACED, CHOSEN], ids=["replaced", "chosen"])
def test_beat_and_commands_connect_by_the_given_client_only(
    server: Server, tmp_path: Path, unwanted: socket.socket, source: str
) -> None:
    extra = source.format(host=server.host, port=server.port) + (
        "app.conf.beat_schedule = {'often': {'task': 'echo', 'schedule': 0.5}}"
    )
    url = f"redis://127.0.0.1:{unwanted.getsockname()[1]}/0"
    write_app(
        tmp_path, "module", server.url(0), extra=extra, redbeat_redis_url=url, redbeat_http="127.0.0.1:0"
    )
    with server.client() as broker, server.client(db=3) as schedule:
        with celery_beat(tmp_path, "module", scheduler="module.Scheduler") as beat:
            eventually(lambda: int(broker.llen("celery")) > 3)  # type: ignore[arg-type]
            assert schedule.get("redbeat::lock")
            if source is CHOSEN:
                eventually(lambda: schedule.exists("redbeat:own"))
            else:
                listed = celery_command(tmp_path, "module", "redbeat", "list")
                assert listed.wait() == 0, listed.output()
                assert "often" in listed.output()
        assert beat.returncode == 0, beat.output()
    with pytest.raises(BlockingIOError):
        unwanted.accept()
