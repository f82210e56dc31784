"""Every way to reach one server: each form of URL and option saves an entry there and sends its run."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
from redis.credentials import UsernamePasswordCredentialProvider

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, StoreRefused, StoreUnavailable
from redbeat.schedulers import get_redis
from tests.faults.children import run_child
from tests.support.certificates import Certificates
from tests.support.servers import Server
from tests.support.ticks import assert_entry_runs, memory_app

PASSWORD = "p@ss:w/rd#%"
QUOTED_PASSWORD = "p%40ss%3Aw%2Frd%23%25"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with a password for all, a user of its own and a socket."""
    with Server("valkey", unix_socket=True, requirepass=PASSWORD) as server:
        with server.client() as client:
            client.acl_setuser("rick", enabled=True, passwords=[f"+{PASSWORD}"], keys="*", commands=["+@all"])
            client.execute_command("ACL SETUSER", "rick", "allchannels")
        yield server


# -- plain


@pytest.mark.parametrize("scheme", ["redis", "valkey", "REDIS"])
def test_a_url_of_each_scheme_reaches_its_database(server: Server, scheme: str) -> None:
    app = memory_app(redbeat_redis_url=f"{scheme}://{server.host}:{server.port}/3")
    assert_entry_runs(app)
    assert server.client(db=3).exists("redbeat:report")


@pytest.mark.parametrize(
    "url",
    ["unix://{userinfo}{path}?db=2", "redis+socket://{userinfo}{path}?virtual_host=2"],
    ids=["unix", "redis+socket"],
)
def test_a_socket_reaches_its_database(guarded: Server, url: str) -> None:
    guarded.flush()
    app = memory_app(redbeat_redis_url=url.format(userinfo=f":{QUOTED_PASSWORD}@", path=guarded.socket_path))
    assert_entry_runs(app)
    assert guarded.client(db=2).exists("redbeat:report")


def test_the_schedule_is_on_the_broker_when_nothing_else_is_said(valkey: Server) -> None:
    assert_entry_runs(memory_app(broker_url=valkey.url(4)))
    assert valkey.client(db=4).exists("redbeat:report")


# -- who connects


@pytest.mark.parametrize(
    ("userinfo", "options"),
    [
        (f":{QUOTED_PASSWORD}@", {}),
        (f"rick:{QUOTED_PASSWORD}@", {}),
        ("", {"password": PASSWORD}),
        ("", {"username": "rick", "password": PASSWORD}),
    ],
    ids=["password in URL", "user in URL", "password option", "user option"],
)
def test_a_password_with_special_characters_is_accepted(
    guarded: Server, userinfo: str, options: dict[str, Any]
) -> None:
    guarded.flush()
    url = f"redis://{userinfo}{guarded.host}:{guarded.port}/1"
    app = memory_app(redbeat_redis_url=url, redbeat_redis_options=options)
    assert_entry_runs(app)
    user = "rick" if "rick" in url or options.keys() - {"password"} else "default"
    assert get_redis(app).acl_whoami() == user


class Rick(UsernamePasswordCredentialProvider):
    """Knows the password."""

    def __init__(self) -> None:
        super().__init__("rick", PASSWORD)


class Silent(Rick):
    """Can't be made, with an error that quotes the password."""

    def __init__(self) -> None:
        raise RuntimeError(PASSWORD)


RICK = f"{__name__}.Rick"


@pytest.mark.parametrize("userinfo", ["", "somebody:else@"])
@pytest.mark.parametrize(
    ("query", "settings"),
    [
        ("", {"redbeat_redis_options": {"credential_provider": Rick()}}),
        ("", {"redbeat_redis_options": {"credential_provider": Rick}}),
        ("", {"redbeat_redis_options": {"credential_provider": RICK}}),
        (f"?credential_provider={RICK}", {}),
        (f"?credential_provider={RICK}", {"redbeat_redis_options": {"retry_period": 1}}),
    ],
    ids=["object", "class", "dotted path", "URL", "URL with other options"],
)
def test_a_credential_provider_is_asked_however_it_is_given(
    guarded: Server, userinfo: str, query: str, settings: dict[str, Any]
) -> None:
    guarded.flush()
    url = f"redis://{userinfo}{guarded.host}:{guarded.port}/1{query}"
    app = memory_app(redbeat_redis_url=url, **settings)
    assert_entry_runs(app)
    assert get_redis(app).acl_whoami() == "rick"


def test_the_credential_provider_of_a_redis_broker_is_used_for_a_schedule_on_it(guarded: Server) -> None:
    url = f"redis://{guarded.host}:{guarded.port}/1"
    options = {"broker_transport_options": {"credential_provider": RICK}}
    assert get_redis(memory_app(broker_url=url, **options)).acl_whoami() == "rick"
    with pytest.raises(StoreRefused, match="it needs a password"):
        RedBeatSchedulerEntry.from_key("redbeat:x", memory_app(redbeat_redis_url=url, **options))


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        (
            "no.such.module",
            r"'no.such.module' can't be imported \(ModuleNotFoundError\): use the dotted path",
        ),
        (f"{__name__}.Nobody", r"Nobody' can't be imported \(AttributeError\)"),
        (PASSWORD, "this text can't be imported"),
        (f"{__name__}.Silent", "can't be made: it raised RuntimeError.$"),
        (Silent, "can't be made: it raised RuntimeError.$"),
        (7, "must be a redis.CredentialProvider, such a class or its dotted path, got int"),
    ],
)
def test_a_credential_provider_that_cannot_be_used_is_a_configuration_error(
    guarded: Server, provider: Any, said: str
) -> None:
    app = memory_app(
        redbeat_redis_url=f"redis://{guarded.host}:{guarded.port}/1",
        redbeat_redis_options={"credential_provider": provider},
    )
    with pytest.raises(
        ConfigurationError, match=f"redbeat_redis_options: credential_provider: .*{said}"
    ) as caught:
        get_redis(app)
    assert PASSWORD not in str(caught.value)


def test_an_option_that_the_client_has_not_is_a_configuration_error(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(), redbeat_redis_options={"sokcet_timeout": 1})
    with pytest.raises(ConfigurationError, match="sokcet_timeout"):
        get_redis(app).ping()


# -- TLS


@pytest.fixture
def certificates(tls: Server) -> Certificates:
    assert tls.certificates
    return tls.certificates


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_tls_works_with_the_authority_in_the_url(
    tls: Server, certificates: Certificates, scheme: str
) -> None:
    url = f"{scheme}://{tls.host}:{tls.port}/1?ssl_ca_certs={certificates.ca}"
    assert_entry_runs(memory_app(redbeat_redis_url=url))


def test_tls_works_with_the_authority_in_the_options(tls: Server, certificates: Certificates) -> None:
    options = {"ssl_ca_certs": str(certificates.ca)}
    assert_entry_runs(memory_app(redbeat_redis_url=tls.url(1), redbeat_redis_options=options))


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.parametrize("cert_reqs", [ssl.CERT_REQUIRED, "CERT_REQUIRED", "required"], ids=repr)
def test_tls_works_with_the_use_ssl_of_celery_users(
    tls: Server, certificates: Certificates, scheme: str, cert_reqs: Any
) -> None:
    use_ssl = {"ssl_cert_reqs": cert_reqs, "ssl_ca_certs": str(certificates.ca)}
    url = f"{scheme}://{tls.host}:{tls.port}/1"
    assert_entry_runs(memory_app(redbeat_redis_url=url, redbeat_redis_use_ssl=use_ssl))


def test_tls_is_that_of_the_broker_when_nothing_else_is_said(tls: Server, certificates: Certificates) -> None:
    use_ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": str(certificates.ca)}
    assert_entry_runs(memory_app(broker_url=tls.url(), broker_use_ssl=use_ssl))


@pytest.mark.parametrize("knows_another", [False, True], ids=["no authority", "another authority"])
def test_a_certificate_that_cannot_be_verified_is_refused(
    tls: Server, certificates: Certificates, knows_another: bool
) -> None:
    options = {"ssl_ca_certs": str(certificates.stranger_ca)} if knows_another else {}
    app = memory_app(redbeat_redis_url=tls.url(1), redbeat_redis_options=options)
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()


@pytest.mark.parametrize(
    "settings",
    [
        {"redbeat_redis_url": "{url}?ssl_cert_reqs=none"},
        {"redbeat_redis_url": "{url}?ssl_cert_reqs=CERT_NONE"},
        {"redbeat_redis_url": "{url}", "redbeat_redis_options": {"ssl_cert_reqs": "none"}},
        {"redbeat_redis_url": "{url}", "redbeat_redis_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE}},
        {"broker_url": "{url}", "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE}},
    ],
    ids=["URL", "URL, Celery's word", "option", "redbeat_redis_use_ssl", "broker_use_ssl"],
)
def test_certificates_are_not_verified_when_told_so(tls: Server, settings: dict[str, Any]) -> None:
    url_filled = {
        name: value.format(url=tls.url(1)) if isinstance(value, str) else value
        for name, value in settings.items()
    }
    assert_entry_runs(memory_app(**url_filled))


def test_a_client_certificate_is_presented_when_the_server_wants_one(tls: Server) -> None:
    with Server("redis", tls=True, tls_auth_clients=True) as strict:
        assert strict.certificates
        files = {
            "ssl_ca_certs": str(strict.certificates.ca),
            "ssl_certfile": str(strict.certificates.cert),
            "ssl_keyfile": str(strict.certificates.key),
        }
        assert_entry_runs(memory_app(redbeat_redis_url=strict.url(), redbeat_redis_use_ssl=files))


# -- one client


def test_an_app_has_one_client_made_when_it_is_first_used(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(1), redbeat_redis_options={"client_name": "the-only"})
    entry = RedBeatSchedulerEntry("report", "tasks.report", 60, app=app)
    assert getattr(app, "redbeat_redis", None) is None, "a child made by fork would share its connections"
    entry.save()
    client = app.redbeat_redis
    assert_entry_runs(app)
    assert get_redis(app) is client
    names = [connection["name"] for connection in valkey.client().client_list()]
    assert names.count("the-only") == 1, "each command is sent when the one before is done"


def test_an_injected_client_is_used(valkey: Server, redis: Server) -> None:
    app = memory_app(redbeat_redis_url=redis.url(1))
    app.redbeat_redis = valkey.client(db=5)
    assert_entry_runs(app)
    assert valkey.client(db=5).exists("redbeat:report")
    assert not redis.client(db=1).keys()


def test_an_injected_client_may_leave_replies_undecoded(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(1))
    app.redbeat_redis = valkey.client(db=1, decode_responses=False)
    assert_entry_runs(app)


@pytest.mark.parametrize("is_used_before", [False, True], ids=["unused", "used before the fork"])
def test_parent_and_child_of_a_fork_both_reach_the_schedule(valkey: Server, is_used_before: bool) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(1))
    if is_used_before:
        RedBeatSchedulerEntry("before", "tasks.report", 60, app=app).save()

    def save(writer: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            RedBeatSchedulerEntry(f"{writer}-{number}", "tasks.report", 60, app=app).save()

    own = iter(range(200))
    assert run_child(lambda: save("child", range(200)), lambda: save("parent", islice(own, 1))) == 0
    save("parent", own)
    assert valkey.client(db=1).zcard("redbeat::schedule") == 400 + is_used_before
