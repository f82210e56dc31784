"""The table of settings, from which reading, validation, the docs and ``exampleconf.py`` are made.

Pure: a row's ``parse`` takes a value and returns the one to use, or raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from redbeat.config.address import MAX_PATH_BYTES, Address, parse_address
from redbeat.config.networks import parse_networks
from redbeat.config.ping_urls import parse_ping_host, parse_ping_url
from redbeat.config.timing import MIN_LOCK_SECONDS, MIN_TAKEOVER_SECONDS
from redbeat.config.urls import REDIS_SCHEMES, scheme_of
from redbeat.keys import DEFAULT_CLUSTER_PREFIX, DEFAULT_PREFIX, is_owner_name
from redbeat.layout import MAX_SHARDS

MEBIBYTE = 1024 * 1024

#: how many missed runs are made up for at the most with misfire 'all', unless it is said otherwise
MISFIRE_LIMIT = 100
#: the highest ``misfire_limit``: for each run that is made up for, the schedule computes one time
MAX_MISFIRE_LIMIT = 1000

#: the options that RedBeat itself reads: all others in redbeat_redis_options go to the redis client as they
#: are, and all others in broker_transport_options are kombu's and ignored
OPTIONS: dict[str, str] = {
    "retry_period": "seconds to go on trying when Redis can't be reached; -1 for ever; unset: not at all",
    "cluster": "True: the server is a Redis Cluster",
    "startup_nodes": "list of {'host', 'port'}: nodes of a Redis Cluster to start from",
    "sentinels": "list of (host, port): the Sentinels",
    "service_name": "the Sentinels' name for the master (kombu's ``master_name`` is read as well)",
    "sentinel_kwargs": "dict of options for the connections to the Sentinels themselves",
    "credential_provider": "a ``redis.CredentialProvider``, such a class, or its dotted path (``pkg.Class``)",
    "master_name": "kombu's name for ``service_name``",
}


#: a host as a browser names it, perhaps with a port, or all hosts below a name
_WEB_HOST = re.compile(r"(\*\.)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])")

_CREDENTIALS = ("username", "password")


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        name: as written in a Celery configuration, lower case.
        default: the value when unset; None where ``default_words`` tells more.
        parse: returns the value to use; raises ValueError or TypeError when it isn't allowed.
        allowed: the allowed values, as a phrase for an error message.
        doc: what it is for, in reStructuredText.
        default_words: the default in words, where it isn't a constant; '': it is.
        is_secret: the value may hold a password and is never printed.
        attribute: of :class:`RedBeatConfig`, which holds the value; the name without ``redbeat_`` by default.
    """

    name: str
    default: Any
    parse: Callable[[Any], Any]
    allowed: str
    doc: str
    default_words: str = ""
    is_secret: bool = False
    attribute: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attribute", self.attribute or self.name.removeprefix("redbeat_"))


#: what stands for True and for False in an environment variable
_FLAGS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}

#: options of the redis client that are numbers, and those that are True or False
_NUMBER_OPTIONS = frozenset(
    {
        *("retry_period", "db", "port", "protocol", "max_connections", "health_check_interval"),
        *("socket_timeout", "socket_connect_timeout", "socket_read_size", "min_other_sentinels"),
        *("cluster_error_retry_attempts", "reinitialize_steps", "timeout"),
    }
)
_FLAG_OPTIONS = frozenset(
    {
        *("cluster", "decode_responses", "socket_keepalive", "retry_on_timeout", "single_connection_client"),
        *("ssl", "ssl_check_hostname", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled"),
        *("require_full_coverage", "read_from_replicas", "dynamic_startup_nodes", "skip_full_coverage_check"),
    }
)


def as_flag(value: Any) -> Any:
    """Return the bool that a number or a text such as 'False' stands for; anything else as it is."""
    if isinstance(value, str):
        return _FLAGS.get(value.strip().lower(), value)
    return bool(value) if value in (0, 1) and not isinstance(value, complex) else value


def as_number(value: Any) -> Any:
    """Return the number that a text such as '60' or '0.5' writes; anything else as it is."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _is_unset(value: Any) -> bool:
    """Return True if a setting is None, or the empty text of an environment variable."""
    return value is None or value == ""


def _url(value: Any) -> str | None:
    if _is_unset(value):
        return None
    if not isinstance(value, str) or scheme_of(value) not in REDIS_SCHEMES:
        raise ValueError
    return value


def _patterns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one for one in value):
        raise ValueError
    return tuple(value)


def _web_hosts(value: Any) -> tuple[str, ...]:
    hosts = _patterns(value)
    if not all(_WEB_HOST.fullmatch(host) for host in hosts):
        raise ValueError
    return hosts


def _options(value: Any) -> dict[str, Any]:
    if _is_unset(value):
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError
    value = _typed_options(value)
    period = value.get("retry_period")
    if period is not None and not (is_number(period) and (period >= 0 or period == -1)):
        raise ValueError("retry_period must be a number of seconds, or -1.")
    for name in _CREDENTIALS:
        if not isinstance(value.get(name), (str, bytes, int, float, NoneType)):
            raise ValueError(f"{name} must be a string.")
    return dict(value)


def _typed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of the redis client with numbers and flags instead of their texts.

    Raises:
        ValueError: the text of one is neither; the message names the option.
    """
    typed: dict[str, Any] = {}
    for name, value in options.items():
        read = as_number if name in _NUMBER_OPTIONS else as_flag if name in _FLAG_OPTIONS else None
        if read is not None and value == "":  # an empty environment variable
            continue
        typed[name] = found = value if read is None else read(value)
        if read is not None and isinstance(found, str):
            what = "a number" if read is as_number else "True or False"
            raise ValueError(f"{name} must be {what}.")
    for name in ("sentinel_kwargs", "connection_kwargs"):
        if isinstance(typed.get(name), Mapping):
            typed[name] = _typed_options(typed[name])
    if isinstance(typed.get("sentinels"), (list, tuple)):
        typed["sentinels"] = [
            (one[0], as_number(one[1])) if isinstance(one, (list, tuple)) and len(one) == 2 else one
            for one in typed["sentinels"]
        ]
    if isinstance(typed.get("startup_nodes"), (list, tuple)):
        typed["startup_nodes"] = [
            _typed_options(one) if isinstance(one, Mapping) else one for one in typed["startup_nodes"]
        ]
    return typed


def _use_ssl(value: Any) -> bool | dict[str, Any]:
    if _is_unset(value):
        return False
    if isinstance(value, Mapping):
        return _typed_options(value)
    return _flag(value)


def _key_prefix(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _lock_key(value: Any) -> str | None:
    if not isinstance(value, str) and value not in (None, False):
        raise ValueError
    return value or None


def _lock_timeout(value: Any) -> float | None:
    value = as_number(value)
    if _is_unset(value) or value == 0:  # 2.x reads 0 as unset
        return None
    if not is_number(value) or not MIN_LOCK_SECONDS <= value <= 10**9:
        raise ValueError
    return value  # type: ignore[no-any-return]


def _ping_url(value: Any) -> str | None:
    if value is not None:
        parse_ping_url(value)
    return value  # type: ignore[no-any-return]


def _ping_hosts(value: Any) -> tuple[str, ...]:
    hosts = (value,) if isinstance(value, str) else tuple(value)
    for host in hosts:
        parse_ping_host(host)
    return hosts


def _statics_owner(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else tuple(value)
    if not names or not all(is_owner_name(name) for name in names):
        raise ValueError
    return names


def _http(value: Any) -> Address | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError
    try:
        return parse_address(value)
    except ValueError:  # the text of ipaddress' own says less than this setting's sentence
        raise ValueError from None


def _flag(value: Any) -> bool:
    value = as_flag(value)
    if not isinstance(value, bool):
        raise ValueError
    return value


def _auto_or_false(value: Any) -> str | bool:
    value = as_flag(value)
    if value not in ("auto", False):
        raise ValueError
    return "auto" if value else False


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


#: the parser of a setting, and the allowed values as a phrase
Rule = tuple[Callable[[Any], Any], str]


def _one_of(*words: str) -> Rule:
    def parse(value: Any) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    *others, last = map(repr, words)
    return parse, f"{', '.join(others)} or {last}"


def _whole_number(
    least: int, most: int, unit: str = "", note: str = "", *, is_optional: bool = False
) -> Rule:
    def parse(value: Any) -> int | None:
        value = as_number(value)
        if is_optional and _is_unset(value):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError
        return value

    return parse, f"a whole number {unit}from {least} to {most}{note}{', or None' if is_optional else ''}"


def _seconds(least: float, most: float, which: str, *, is_optional: bool = False) -> Rule:
    def parse(value: Any) -> float | None:
        value = as_number(value)
        if is_optional and _is_unset(value):
            return None
        if not is_number(value) or not least <= value <= most:
            raise ValueError
        return float(value)

    return parse, f"a number of seconds{which}{', or None' if is_optional else ''}"


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "redbeat_redis_url",
            None,
            _url,
            "a URL that starts with " + ", ".join(f"{scheme}://" for scheme in REDIS_SCHEMES),
            "Where the schedule lives. A database number may follow: ``redis://127.0.0.1:6379/1``.",
            default_words="``broker_url``",
            is_secret=True,
        ),
        Setting(
            "redbeat_redis_options",
            None,
            _options,
            "a dict; in it retry_period is a number of seconds, or -1 for ever; username and password are "
            "strings, and the other options are of the types of the redis client",
            "How to connect: a dict of the :ref:`options <options>` that RedBeat reads itself; it passes all "
            "others to the redis client.",
            default_words="those of ``broker_transport_options`` that RedBeat itself knows, and no others",
            is_secret=True,
            attribute="redbeat_redis_options",  # as in 2.x
        ),
        Setting(
            "redbeat_redis_use_ssl",
            None,
            _use_ssl,
            "True, False, or a dict of ssl_* options of the redis client",
            "Connect with TLS. A ``rediss://`` URL does the same; certificates are required unless "
            "``ssl_cert_reqs`` says otherwise.",
            default_words="``broker_use_ssl``, where the broker is Redis as well",
            is_secret=True,
        ),
        Setting(
            "redbeat_key_prefix",
            DEFAULT_PREFIX,
            _key_prefix,
            "a non-empty string. To keep keys that 2.x wrote without a prefix, copy them to one (docs: "
            "upgrading, A schedule without a prefix)",
            "What every key in Redis starts with. In a Redis Cluster it must carry a hash tag, "
            f"and its default there is ``{DEFAULT_CLUSTER_PREFIX}``.",
        ),
        Setting(
            "redbeat_shards",
            None,
            *_whole_number(1, MAX_SHARDS, is_optional=True),
            "Into how many shards the schedule is divided, each with its own keys and its own lock, so that "
            "several beats lead at once, and a Redis Cluster spreads them over its nodes. None: it isn't "
            "divided. ``celery redbeat reshard`` changes it for a schedule that has entries. See "
            ":doc:`shards`.",
        ),
        Setting(
            "redbeat_lock_key",
            None,
            _lock_key,
            "a string, or None or False for no lock",
            "The key of the lock that one beat at a time holds. It gets the prefix where it has none. "
            "``None`` disables the lock: several beats then share the work.",
            default_words="the prefix and ``:lock``, so ``redbeat::lock``",
        ),
        Setting(
            "redbeat_lock_timeout",
            None,
            _lock_timeout,
            f"a number of seconds, {MIN_LOCK_SECONDS} or more; 0 and None count as unset",
            "Seconds after which the lock of a beat that doesn't renew it any more is free. Another beat "
            "takes it over earlier, see ``redbeat_takeover_after``. A lock of less than 8 seconds is "
            "renewed and checked more often, see :ref:`short-locks`.",
            default_words="5 x ``max_interval``, so 1500",
        ),
        Setting(
            "redbeat_takeover_after",
            8,
            *_seconds(MIN_TAKEOVER_SECONDS, 10**9, f", {MIN_TAKEOVER_SECONDS} or more", is_optional=True),
            "Seconds after which a leader that doesn't renew its lock is replaced by a standby, however "
            "long the lock lives. None: the lock must end by itself. A leader of celery-redbeat 2.x is never "
            "replaced.",
        ),
        Setting(
            "redbeat_lock_lost",
            "exit",
            *_one_of("exit", "standby"),
            "What a leader does when it finds that another beat has the lock, as after a long pause: end "
            "with an error, so that a supervisor starts it again, or stand by for the lock in place. The "
            "beat inside ``celery worker -B`` always stands by.",
        ),
        Setting(
            "redbeat_key_expiry_check",
            "error",
            *_one_of("ignore", "warn", "error", "raise"),
            "What to do at start when the server's ``maxmemory-policy`` may evict the schedule: nothing, "
            "log a warning, log an error, or refuse to start.",
        ),
        Setting(
            "redbeat_batch_size",
            500,
            *_whole_number(1, 5000),
            "How many due entries are read, sent and recorded at a time.",
        ),
        Setting(
            "redbeat_lookahead",
            5,
            *_seconds(0, 60, " from 0 to 60"),
            "How many seconds before it is due a run is prepared, in idle time, so that it leaves as soon as "
            "its time comes. 0: nothing is prepared. It is done only for messages that are compiled, where "
            "schedule and broker are one server. See :doc:`performance`.",
        ),
        Setting(
            "redbeat_templates",
            "auto",
            _auto_or_false,
            "'auto' or False",
            "``auto``: messages are made from templates where Celery would provably make the same ones, in a "
            "fraction of the time. False: Celery makes every message, and runs leave one by one. "
            "See :ref:`quick-way`.",
        ),
        Setting(
            "redbeat_message_cache_bytes",
            64 * MEBIBYTE,
            *_whole_number(0, 2**40, unit="of bytes ", note=" (1 TiB)"),
            "How much memory beat may take to remember the messages of entries and when they run, so that a "
            "run that is due again leaves quickly: about 2 KB for an entry. What wasn't due for the longest "
            "time is forgotten first. 0: messages are made one by one. See :doc:`performance`.",
            default_words="67108864, which is 64 MiB",
        ),
        Setting(
            "redbeat_max_entry_bytes",
            MEBIBYTE,
            *_whole_number(1000, 512 * MEBIBYTE, unit="of bytes ", note=" (512 MiB)"),
            "How large an entry may be: its definition, its policy and its bookkeeping in Redis. The server "
            "itself measures them. A larger one isn't read: it is quarantined with a sentence that says so, "
            "and the others go on. Saving one is refused. Beat reads and sends an entry in one step, about "
            "0.1 seconds for each MiB of small values, and all others wait for it.",
            default_words="1048576, which is 1 MiB",
        ),
        Setting(
            "redbeat_delivery",
            "exactly_once",
            *_one_of("exactly_once", "at_most_once"),
            "``exactly_once``: a run is never lost, and never doubled where schedule and broker are on one "
            "server; elsewhere a crash may send it again with the same task id. ``at_most_once``: a run is "
            "never doubled; a crash, or a broker that goes away amid a batch, may lose up to 20. "
            "See :doc:`delivery`.",
        ),
        Setting(
            "redbeat_publish_timeout",
            10,
            *_seconds(0.1, 3600, " from 0.1 to 3600"),
            "Seconds after which beat stops waiting for the broker while it sends a batch. What wasn't sent "
            "by then stays due. A third of ``redbeat_lock_timeout`` at the most, whatever is set here.",
        ),
        Setting(
            "redbeat_misfire",
            "latest",
            *_one_of("latest", "all", "earliest", "skip"),
            "What beat does about missed runs, for entries without a ``misfire`` of their own: send one run "
            "for all, as of the latest; each of them; one as of the earliest; or none. See :doc:`time`.",
        ),
        Setting(
            "redbeat_misfire_limit",
            MISFIRE_LIMIT,
            *_whole_number(1, MAX_MISFIRE_LIMIT),
            "How many missed runs of an entry are made up for at the most, with ``all``: the latest ones.",
        ),
        Setting(
            "redbeat_misfire_grace_time",
            None,
            *_seconds(math.ulp(0.0), 10**10, " above 0", is_optional=True),
            "Seconds; a run that is later than that is skipped. None: no run is, but with ``skip`` it is 60.",
        ),
        Setting(
            "redbeat_history",
            20,
            *_whole_number(0, 1000),
            "How many of an entry's last runs are kept beside it: when each was due and sent, or why "
            "not. 0: none are, and what is kept already stays.",
        ),
        Setting(
            "redbeat_run_lease",
            30,
            *_seconds(1, 3600, " from 1 to 3600"),
            "How many seconds a run counts as in progress after its worker last said so, where runs are "
            "tracked; a worker says so ten times in this time. When a worker is killed, its runs are lost "
            "after that long, and hold back no others any more; one whose processes are stopped for longer "
            "loses them, too. Set it for the workers.",
        ),
        Setting(
            "redbeat_log_format",
            "celery",
            *_one_of("celery", "json"),
            "How beat's log is written: in Celery's own formats, or one line of JSON for each record, with "
            "stable names of what has happened. See :ref:`logs`.",
        ),
        Setting(
            "redbeat_sentry",
            True,
            _flag,
            "True or False",
            "Where Sentry is asked to monitor entries, by ``CeleryIntegration(monitor_beat_tasks=True)``, "
            "beat does it itself, with the right schedules and one check-in a run. False: it is left to "
            "Sentry's own code. See :ref:`sentry`.",
        ),
        Setting(
            "redbeat_ping_url",
            None,
            _ping_url,
            "a URL that starts with https:// or http://, without a user name, or None",
            "What the leader calls each minute while all is well, so that a service raises the alarm when it "
            "doesn't. See :ref:`dead-mans-switch`.",
            is_secret=True,
        ),
        Setting(
            "redbeat_ping_late_after",
            60,
            *_seconds(1, 10**9, ", 1 or more"),
            "After how many seconds an entry that is due and wasn't sent means that not all is well, so that "
            "``redbeat_ping_url`` isn't called.",
        ),
        Setting(
            "redbeat_ping_hosts",
            (),
            _ping_hosts,
            "a list of hosts, such as 'hc-ping.com', 'pings.local:8000' or '*.example.com'",
            "Which hosts beat may call for entries with a ``ping_url``. Without a port the scheme's own is "
            "meant. See :ref:`dead-mans-switch`.",
            default_words="none, so that no ``ping_url`` is called",
        ),
        Setting(
            "redbeat_web_hosts",
            (),
            _web_hosts,
            "a list of names, such as 'redbeat.example.com' or '*.example.com'",
            "The names under which the dashboard may be asked for, besides those of the machine itself. See "
            ":doc:`web`.",
            default_words="none, so that only ``localhost`` and its addresses are",
        ),
        Setting(
            "redbeat_web_proxies",
            (),
            parse_networks,
            "a list of addresses or networks, such as '10.0.0.0/8' or '::1', and 'unix' for a unix socket",
            "The reverse proxies in front of the dashboard, whose ``X-Forwarded-`` headers count. See "
            ":doc:`web`.",
            default_words="none",
        ),
        Setting(
            "redbeat_web_tasks",
            ("*",),
            _patterns,
            "a list of patterns of task names, such as 'reports.*'",
            "The tasks that the dashboard and its API may run, and give to entries. Running a task is "
            "running code: limit this where people are let in who may not. See :doc:`web`.",
            default_words='all: ``["*"]``',
        ),
        Setting(
            "redbeat_web_hide",
            ("*password*", "*token*"),
            _patterns,
            "a list of patterns of argument names, such as '*password*'",
            "The arguments of tasks that the dashboard and its API don't show, by their names; positional "
            "ones by those of the task's parameters. Case doesn't count. See :doc:`web`.",
            default_words='``["*password*", "*token*"]``',
        ),
        Setting(
            "redbeat_durable_after",
            600,
            *_seconds(0, 10**9, " from 0"),
            "Of durable tasks: a message whose ``eta`` or ``countdown`` is further ahead than this is stored "
            "in Redis until then, instead of being published at once; seconds. See :doc:`later`.",
            default_words="600, which is 10 minutes",
        ),
        Setting(
            "redbeat_metrics_entries",
            200,
            *_whole_number(0, 2000),
            "How many entries have metrics of their own: the first ones that run, and those whose policy has "
            "``metrics``. All others are counted together, as ``other``. 0: no metric names an entry. "
            "See :doc:`monitoring`.",
        ),
        Setting(
            "redbeat_statics_owner",
            None,
            _statics_owner,
            "a name without control characters, or a list of names",
            "Whose the entries of ``beat_schedule`` and ``@scheduled`` are. A beat removes those that were "
            "stored for the same owner and have left its code, so that applications can share a schedule. "
            "With several names the first counts, and what belongs to the others is taken over: the former "
            "names of the app. See :ref:`owners`.",
            default_words="the app's main name",
            attribute="statics_owners",
        ),
        Setting(
            "redbeat_wait_replicas",
            0,
            *_whole_number(0, 100),
            "How many replicas of the schedule's server beat waits for after each batch (``WAIT``), for one "
            "second at the most. What a failover of Redis can undo is then one batch. "
            "See :ref:`failover`.",
        ),
        Setting(
            "redbeat_http",
            None,
            _http,
            "'HOST:PORT', such as '127.0.0.1:9808', '[::1]:9808' or '0.0.0.0:9808', where port 0 is any that "
            f"is free; or 'unix:' and an absolute path of at most {MAX_PATH_BYTES} bytes; or None",
            "Where a running beat answers over HTTP whether it lives, leads and is on time. None: nowhere. "
            "There is no password: whoever can reach the address may ask. See :ref:`endpoint`.",
        ),
    )
}
