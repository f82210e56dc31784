"""The configuration of one app: its settings, read from Celery's configuration, and checked.

Invariant: a :class:`RedBeatConfig` holds only values that were checked, and making one writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from celery.app import app_or_default
from celery.app.defaults import _TO_OLD_KEY

from redbeat.config.address import Address
from redbeat.config.masking import sanitize_url
from redbeat.config.networks import Network
from redbeat.config.settings import OPTIONS as OPTIONS
from redbeat.config.settings import SETTINGS as SETTINGS
from redbeat.config.settings import Setting as Setting
from redbeat.config.settings import as_number, is_number
from redbeat.config.suggestions import nearest_to
from redbeat.config.urls import REDIS_SCHEMES, scheme_of
from redbeat.errors import ConfigurationError
from redbeat.keys import DEFAULT_CLUSTER_PREFIX, RESERVED_NAMES, Keys, has_hash_tag, keys_of
from redbeat.layout import Layout, LayoutRule, assumed_layout
from redbeat.log.events import SETTING_UNKNOWN
from redbeat.log.logger import logger
from redbeat.process.memory import Memory

#: the shortest default of ``redbeat_lock_timeout``, whatever ``max_interval`` is
MIN_DEFAULT_LOCK_SECONDS = 3


def load_conf(app: Any) -> Any:
    """Return ``app.conf``, and load its configuration if it is still pending.

    Reading any item loads it. An attribute may not: with ``CELERY_BROKER_URL`` in the environment,
    ``conf.broker_url`` does not look into the configuration.
    """
    conf = app.conf
    conf["beat_schedule"]
    return conf


def _explicit_settings(app: Any) -> Iterator[tuple[str, Any]]:
    """Yield (lower-case name, value) of each redbeat_* setting of ``app``, the strongest last."""
    conf = load_conf(app)
    namespace = (conf.prefix or "").lower()
    for mapping in reversed(conf.maps):
        for key in list(mapping):
            name = key.lower().removeprefix(namespace) if isinstance(key, str) else ""
            if name.startswith("redbeat_"):
                yield name, mapping[key]


def _value(explicit: Mapping[str, Any], setting: Setting) -> Any:
    """Return the checked value of ``setting``, or its default."""
    return _parse(setting, explicit[setting.name]) if setting.name in explicit else setting.default


def _parse(setting: Setting, value: Any, given_as: str | None = None) -> Any:
    name = given_as or setting.name
    try:
        return setting.parse(value)
    except (ValueError, TypeError) as exc:
        problem = f"{'its value (not shown here)' if setting.is_secret else repr(value)} isn't allowed"
        if setting.is_secret and isinstance(value, Mapping) and str(exc):
            problem = str(exc).rstrip(".")
        elif name == "redbeat_redis_url" and isinstance(value, str):
            problem = f"{sanitize_url(value)!r} isn't allowed"
        message = f"{name}: {problem}; use {setting.allowed}."
        # an error without a text says nothing as a cause
        raise ConfigurationError(message, name) from (exc if str(exc) else None)


#: how old what is known of the layout may be, unless that is said otherwise
LOOK_SECONDS = 30.0


#: attributes from which ``layout`` follows, and those from which ``is_cluster`` does
_OF_LAYOUT = frozenset({"key_prefix", "schedule_key", "statics_key", "shards", "found_layout"})
_OF_SERVER = frozenset({"redis_url", "redbeat_redis_options", "_has_cluster_client"})


class RedBeatConfig:
    """The checked configuration of one app.

    Each setting is an attribute with the name that its row of ``SETTINGS`` gives, as in celery-redbeat 2.x.
    Besides there are ``app``, ``schedule_key`` and ``statics_key``. Attributes may be set, as tests do, and
    aren't checked then. A configuration can be read without a Redis, even if none is configured.

    Raises:
        ConfigurationError: a setting can't be used; it names the setting, its value and what is allowed.
    """

    app: Any
    schedule_key: str
    statics_key: str
    redis_url: str
    redbeat_redis_options: dict[str, Any]
    redis_use_ssl: bool | dict[str, Any]
    key_prefix: str
    shards: int | None  # None: none
    lock_key: str | None  # None: no lock
    lock_timeout: float | None
    takeover_after: float | None
    lock_lost: str
    log_format: str
    ping_url: str | None
    ping_late_after: float
    ping_hosts: tuple[str, ...]
    key_expiry_check: str
    batch_size: int
    lookahead: float
    templates: str | bool  # 'auto' or False
    message_cache_bytes: int
    max_entry_bytes: int
    delivery: str
    publish_timeout: float
    misfire: str
    misfire_limit: int
    misfire_grace_time: float | None
    history: int
    run_lease: float
    sentry: bool
    metrics_entries: int
    statics_owners: tuple[str, ...]  # the first counts, the others are former ones
    wait_replicas: int
    http: Address | None
    web_hosts: tuple[str, ...]
    web_proxies: tuple[Network, ...]
    web_tasks: tuple[str, ...]
    web_hide: tuple[str, ...]
    durable_after: float

    #: the schedule lives in a Redis Cluster
    is_cluster: bool

    def __init__(self, app: Any = None) -> None:
        self.app = app_or_default(app)
        self._explicit = dict(_explicit_settings(self.app))
        self._has_cluster_client = _is_of_cluster(getattr(self.app, "redbeat_redis", None))
        #: what was said about this app, and needn't be said again
        self.said = Memory[str, str]()
        for setting in SETTINGS.values():
            setattr(self, setting.attribute, _value(self._explicit, setting))
        # where a setting isn't given, its value follows from the app or from other settings
        self.redis_url = self.redis_url or self._broker_url()
        self.redbeat_redis_options = self._redis_options(self.redbeat_redis_options)
        self._follow_server()
        self.redis_use_ssl = self._redis_use_ssl(self.redis_use_ssl)
        self.key_prefix = self._key_prefix(self.key_prefix)
        self.lock_key = self._lock_key(self.lock_key)
        self.statics_owners = self.statics_owners or (str(self.app.main or ""),)
        named = Keys(self.key_prefix)
        self.schedule_key, self.statics_key = named.schedule, named.statics
        #: the layout that was found in Redis; None: it hasn't been looked for, or there is none
        self.found_layout: Layout | None = None
        #: when it was looked for last, monotonic; long ago: it has changed; to come: it may not be read, and
        #: isn't looked for until then; None: it never was
        self.looked_at: float | None = None
        #: what is done if that isn't what the settings say
        self.layout_rule = LayoutRule.FOLLOW
        #: the prefixes of parts that are left out by who reads all of them, and says so: their node is away
        self.unread: frozenset[str] = frozenset()
        #: how old what is known of it may be for those who only read; whoever writes is refused, and looks
        self.look_seconds = LOOK_SECONDS
        self._follow_layout()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, as programs and RedBeat do at any time, and update what follows from it."""
        super().__setattr__(name, value)
        if name in _OF_LAYOUT and "layout" in self.__dict__:
            self._follow_layout()
        elif name in _OF_SERVER and "is_cluster" in self.__dict__:
            self._follow_server()

    def _follow_layout(self) -> None:
        base, found = keys_of(self.key_prefix, self.schedule_key, self.statics_key), self.found_layout
        layout = found if found is not None and found.base == base else assumed_layout(base, self.shards)
        if layout != self.__dict__.get("layout"):  # else it stays the same object
            #: the names of all keys without shards, as configured now
            self.base_keys = base
            #: where entries are: as it was found in Redis, else as configured
            self.layout = layout

    def _follow_server(self) -> None:
        options = self.redbeat_redis_options
        has_nodes = bool(options.get("cluster") or options.get("startup_nodes"))
        is_of_cluster = scheme_of(self.redis_url) == "redis-cluster"
        self.is_cluster = has_nodes or self._has_cluster_client or is_of_cluster

    @property
    def schedule(self) -> Any:
        """The app's ``beat_schedule``."""
        return self.app.conf.beat_schedule

    @schedule.setter
    def schedule(self, schedule: Any) -> None:
        self.app.conf.beat_schedule = schedule

    @property
    def wants_layout(self) -> bool:
        """Whether the layout is looked for before anything else is read; else only if a script is refused."""
        return (
            self.shards is not None
            or self.layout_rule is not LayoutRule.FOLLOW
            or self.look_seconds < LOOK_SECONDS
        )

    @property
    def keys(self) -> Keys:
        """The names of all keys in Redis, as configured now, or as found there."""
        return self.layout.keys

    def lock_key_in(self, keys: Keys) -> str | None:
        """Return the key of the lock of the part with these names; None: there is none."""
        if self.lock_key is None or keys.prefix == self.key_prefix:
            return self.lock_key
        return keys.prefix + self.lock_key.removeprefix(self.key_prefix)

    @property
    def reserved_names(self) -> frozenset[str]:
        """Names of RedBeat's own keys, which no entry may have."""
        return _reserved_names(self.key_prefix, self.lock_key)

    @property
    def is_single_without_hash_tag(self) -> bool:
        """Whether the settings name a single server and keys that would be in several slots of a cluster."""
        return not self.is_cluster and not has_hash_tag(self.key_prefix)

    def note_client(self, client: Any) -> None:
        """Note which client the application has given.

        Raises:
            ConfigurationError: it is a cluster's, and the prefix has no hash tag.
        """
        self._has_cluster_client = _is_of_cluster(client)
        if self._has_cluster_client and not has_hash_tag(self.key_prefix):
            raise self.hash_tag_missing(self.key_prefix, "the client that was given is a cluster's: ")

    @property
    def waits_for_redis(self) -> bool:
        """Whether beat goes on trying when Redis can't be reached; without ``retry_period`` it ends."""
        return self.redbeat_redis_options.get("retry_period") is not None

    def is_key_in_conf(self, name: str) -> bool:
        """Return True if the setting ``name`` is given, in any spelling."""
        return name.lower() in self._explicit

    def either_or(self, name: str, default: Any = None) -> Any:
        """Return the setting ``name`` as given, unchecked, or ``default``."""
        return self._explicit.get(name.lower(), default)

    @staticmethod
    def loop_seconds(given: Any) -> float | None:
        """Return the longest wait between two ticks, a number or its text; None: it is unset.

        Raises:
            ConfigurationError: it isn't a number of seconds.
        """
        seconds = as_number(given)
        if not seconds:
            return None
        if is_number(seconds) and seconds > 0:
            return seconds  # type: ignore[no-any-return]
        raise ConfigurationError(
            f"beat_max_loop_interval: {given!r} isn't allowed; use a number of seconds, more than 0; "
            "0 and None count as unset.",
            "beat_max_loop_interval",
        )

    def lock_seconds(self, given: float | None, max_interval_seconds: float) -> float:
        """Return the lock's time to live: what a scheduler was ``given``, else the setting, else the default.

        Raises:
            ConfigurationError: what was given isn't allowed as the setting, either.
        """
        checked = _parse(SETTINGS["redbeat_lock_timeout"], given, given_as="lock_timeout")
        configured = _parse(SETTINGS["redbeat_lock_timeout"], self.lock_timeout)
        return checked or configured or max(5 * max_interval_seconds, MIN_DEFAULT_LOCK_SECONDS)

    def _broker_url(self) -> str:
        conf = self.app.conf
        broker = conf.broker_url or conf.broker_write_url or conf.broker_read_url or "amqp://"
        return ";".join(_listed(broker))

    def require_redis(self) -> None:
        """Make sure that ``redis_url``, which may be the broker's, is that of a Redis.

        Raises:
            ConfigurationError: it isn't.
        """
        if scheme_of(self.redis_url) in REDIS_SCHEMES:
            return
        raise ConfigurationError(
            f"redbeat_redis_url isn't set, and broker_url {sanitize_url(self.redis_url)!r} is not a Redis "
            "URL: set redbeat_redis_url to the server that keeps the schedule. This is about the app "
            f"{self.app.main or 'without a name'!r}; if you meant another one, pass app=, or -A to "
            "celery.",
            "redbeat_redis_url",
        )

    def _redis_options(self, options: dict[str, Any] | None) -> dict[str, Any]:
        if options is None:
            broker_options = self.app.conf.broker_transport_options or {}
            known = {name: value for name, value in broker_options.items() if name in OPTIONS}
            if self.is_key_in_conf("redbeat_redis_url"):  # the broker's credentials aren't meant for it
                known.pop("credential_provider", None)
            setting = SETTINGS["redbeat_redis_options"]
            try:
                options = dict(_parse(setting, known, given_as="broker_transport_options"))
            except ConfigurationError:
                if self._has_redis_broker:
                    raise
                options = {}  # those of another kind of broker may mean something else
        if "master_name" in options:
            options.setdefault("service_name", options.pop("master_name"))
        return options

    def _redis_use_ssl(self, given: bool | dict[str, Any]) -> bool | dict[str, Any]:
        if self.is_key_in_conf("redbeat_redis_use_ssl"):
            return given
        # the broker_use_ssl of another kind of broker has other keys, and is about other certificates
        if not self._has_redis_broker:
            return False
        setting = SETTINGS["redbeat_redis_use_ssl"]
        return _parse(setting, self.app.conf.broker_use_ssl, given_as="broker_use_ssl")  # type: ignore[no-any-return]

    @property
    def _has_redis_broker(self) -> bool:
        return scheme_of(next(iter(_listed(self.app.conf.broker_url)), "")) in REDIS_SCHEMES

    def _key_prefix(self, prefix: str) -> str:
        if not self.is_cluster:
            return prefix
        if not self.is_key_in_conf("redbeat_key_prefix"):
            return DEFAULT_CLUSTER_PREFIX
        if not has_hash_tag(prefix):
            raise self.hash_tag_missing(prefix)
        return prefix

    def hash_tag_missing(self, prefix: str, where: str = "") -> ConfigurationError:
        """Return the error about a prefix whose keys are in several slots of a cluster.

        Arguments:
            where: says, as the beginning of a clause, which server is part of a cluster; '': the settings do.
        """
        keys = "all keys of the schedule" if self.shards is None else "all that its shards share"
        return ConfigurationError(
            f"redbeat_key_prefix: {prefix!r} has no hash tag, and {where}in a Redis Cluster {keys} must be "
            f"in one slot: use '{{{prefix.rstrip(':')}}}:' (braces included), with redbeat_shards as well. "
            "To move an existing schedule, copy its keys to the new prefix first (docs: upgrading).",
            "redbeat_key_prefix",
        )

    def _lock_key(self, given: str | None) -> str | None:
        if not self.is_key_in_conf("redbeat_lock_key"):
            return Keys(self.key_prefix).lock
        return given and Keys(self.key_prefix).prefixed(given)

    def warn_of_unknown(self) -> None:
        """Log a warning for each unknown redbeat_* setting, once.

        That is a step of its own, as beat's banner reads the configuration before the log is set up.
        """
        for name, hint in self.unknown_settings().items():
            if self.said.is_news(name, hint):
                logger.warning(
                    "beat: Unknown setting %s is ignored; %s",
                    name,
                    hint,
                    extra=SETTING_UNKNOWN.of(setting=name),
                )

    def unknown_settings(self) -> dict[str, str]:
        """Return the unknown redbeat_* settings, each with a hint at what was meant."""
        hints = {}
        for name in sorted(self._explicit.keys() - SETTINGS.keys()):
            nearest = nearest_to(name, SETTINGS)
            hints[name] = f"did you mean {nearest}?" if nearest else "RedBeat has no such setting."
        return hints


def _is_of_cluster(client: Any) -> bool:
    """Return True if ``client``, or the one that a RetryingConnection has, is redis-py's for a cluster."""
    kinds = type(getattr(client, "wrapped_connection", client)).__mro__
    return any(kind.__name__ == "RedisCluster" for kind in kinds)


def _listed(broker: Any) -> list[str]:
    """Return the URLs of a broker, one or several; what is none is told by whoever connects."""
    if isinstance(broker, Iterable) and not isinstance(broker, (str, bytes)):
        return [*map(str, broker)]
    return [str(broker)] if broker else []


@lru_cache(maxsize=64)
def _reserved_names(prefix: str, lock_key: str | None) -> frozenset[str]:
    lock_name = Keys(prefix).name(lock_key or "")
    return RESERVED_NAMES | ({lock_name} if lock_name else frozenset())


def log_format_of(app: Any) -> str:
    """Return ``redbeat_log_format`` alone: it says how an error about any other setting is logged.

    Raises:
        ConfigurationError: it can't be used.
    """
    return str(_value(given_settings(app), SETTINGS["redbeat_log_format"]))


def given_settings(app: Any) -> dict[str, Any]:
    """Return the known ``redbeat_*`` settings that are given, unchecked, by their names in lower case."""
    return {name: value for name, value in _explicit_settings(app) if name in SETTINGS}


def spelled(app: Any, name: str) -> str:
    """Return a setting's name as ``app`` has it: plain, namespaced, or in its Celery 3 form."""
    conf = load_conf(app)
    if conf.prefix:
        return f"{conf.prefix}{name}".upper()
    return str(_TO_OLD_KEY.get(name, name.upper())) if conf.deprecated_settings else name


def ensure_conf(app: Any) -> RedBeatConfig:
    """Return the app's RedBeatConfig, made at the first call and kept as ``app.redbeat_conf``."""
    config: RedBeatConfig | None = getattr(app, "redbeat_conf", None)
    if config is None:
        app = app_or_default(app)
        config = app.redbeat_conf = getattr(app, "redbeat_conf", None) or RedBeatConfig(app)
    return config
