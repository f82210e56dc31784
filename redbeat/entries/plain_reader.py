"""The quick reader: entries as RedBeat writes most of them, in a quarter of the tolerant reader's time.

Invariant: what it returns is what ``decode_entry`` would return. It returns nothing where it isn't certain of
that: another schedule than an interval or a crontab, an unknown key, a datetime, bad JSON.
"""

from __future__ import annotations

import json
import re
from types import NoneType
from typing import Any, NamedTuple

from celery.schedules import BaseSchedule, crontab, schedule

from redbeat.config.config import ensure_conf
from redbeat.decoder import DEFINITION_FIELDS, RedBeatJSONDecoder
from redbeat.log.text import is_utf8
from redbeat.policy.policy import NAMES, NO_POLICY, Policy, decode_policy, make_policy
from redbeat.process.memory import Memory
from redbeat.schedules.occurrences import KINDS
from redbeat.store.records import DueEntry, KeyType

#: how many schedules and policies are remembered, and the most characters of their JSON
MAX_SHARED, MAX_SHARED_LENGTH = 1024, 1000

_KEYS = frozenset(DEFINITION_FIELDS)
#: what may be a letter of "__type__", written as an escape
_ESCAPED_LETTER = re.compile(r"\\u00[567]")

_json = json.JSONDecoder()
_decoder = RedBeatJSONDecoder()


def _given(decoded: dict[str, Any], name: str, default: Any) -> Any:
    found = decoded.get(name)
    return default if found is None else found


class PlainDefinition(NamedTuple):
    """What is read of an enabled entry; the attributes are those of the entry itself.

    Attributes:
        args: [] also for an entry that has none.
        schedule: shared by all entries with the same, so it must not be changed, nor given to anybody's code.
    """

    name: str
    task: str
    schedule: Any
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    policy: Policy


class PlainReader:
    """Reads entries of one app. Make another one when the app's time zone has changed: schedules go by it."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._schedules = Memory[str, BaseSchedule](MAX_SHARED)
        self._policies = Memory[str, Policy](MAX_SHARED)

    def read(self, claimed: DueEntry) -> PlainDefinition | None:
        """Return the entry that was claimed, except for its meta; None: ask ``decode_entry``."""
        text, key = claimed.definition, claimed.key
        if not text or claimed.unread_bytes or claimed.type is not KeyType.HASH:
            return None
        # objects with a __type__ anywhere else but in the schedule would be decoded, too
        if text.count('"__type__"') != 1 or ("\\u00" in text and _ESCAPED_LETTER.search(text)):
            return None
        try:
            decoded, end = _json.raw_decode(text)
            if end != len(text) or type(decoded) is not dict or not _KEYS.issuperset(decoded):
                return None
            task, args = decoded["task"], _given(decoded, "args", [])
            kwargs, options = _given(decoded, "kwargs", {}), _given(decoded, "options", {})
            is_usable = (
                decoded.get("enabled", True) is True
                and type(task) is str
                and task
                and type(args) is list
                and type(kwargs) is dict
                and type(options) is dict
                and isinstance(options.get("headers"), (dict, NoneType))
                and (task.isascii() or is_utf8(task))
                and (key.isascii() or is_utf8(key))
            )
            if not is_usable:
                return None
            schedule_ = self._schedule_of(decoded["schedule"])
            policy = NO_POLICY if claimed.policy is None else self._policy_of(claimed.policy)
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            return None
        if schedule_ is None or policy is None:
            return None
        name = ensure_conf(self._app).keys.name(key)
        return PlainDefinition(name, task, schedule_, args, kwargs, options, policy)

    def _schedule_of(self, encoded: dict[str, Any]) -> BaseSchedule | None:
        if KINDS and encoded["__type__"] in KINDS:
            return None
        key = repr(encoded)  # 1, 1.0 and true are equal, and aren't the same
        found = self._schedules.get(key)
        if found is None:
            found = _decoder.dict_to_object(encoded)
            if type(found) not in (schedule, crontab) or hasattr(found, "typos"):
                return None
            found.app = self._app
            if len(key) <= MAX_SHARED_LENGTH:
                self._schedules[key] = found
        return found

    def _policy_of(self, text: str) -> Policy | None:
        policy = self._policies.get(text)
        if policy is None:
            given = decode_policy(text)
            if not given.keys() <= NAMES:
                return None
            policy = make_policy(given, self._app.timezone)
            if len(text) <= MAX_SHARED_LENGTH:
                self._policies[text] = policy
        return policy
