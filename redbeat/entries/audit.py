"""Who has changed what: each change by the command line and the dashboard is written down before it is made.

It is here as both of them stand above, and as the masks of secrets in fields are here. Python code that
changes entries by itself writes nothing, unless it asks for it.

Invariant: a change is never without a record, unless this user of Redis may not write one, or Redis takes no
more data; and no record has a secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, tzinfo
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any

from redbeat.config.masking import MASK, is_secret_name, mask_secrets
from redbeat.connection.retry import call_briefly
from redbeat.decoder import plain_json
from redbeat.entries.forms import EXPORTED_FIELDS, STATE_FIELDS, arguments_of, shown_value
from redbeat.entries.notation import schedule_in_short
from redbeat.entries.wording import in_utc, in_words_of
from redbeat.errors import EntryError, RedBeatError, StoreRefused, StoreUnavailable
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.exit_codes import CommandLineError
from redbeat.store.audit import AuditRecord as AuditRecord
from redbeat.store.audit import add_audit_record, read_audit_records
from redbeat.store.store import Store

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: what goes without saying
_ENABLED = ("enabled", True)
#: how many names a record has at most
MAX_NAMES = 100
#: how many characters a name, another short text, one of the details, and all of them have at most
MAX_NAME, MAX_TEXT, MAX_DETAIL, MAX_DETAILS = 300, 200, 500, 4_000
#: how many records are read at a time when some are looked for
PAGE = 500
#: for how long it is tried to write that a change has failed
PATIENCE_SECONDS = 2.0


@contextmanager
def audited(
    app: Any,
    user: str,
    source: str,
    verb: str,
    names: Iterable[str],
    details: Mapping[str, Any] | None = None,
    *,
    host: str = "",
    before: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Write down who makes the change that the block makes; if it raises, write that the change has failed.

    Enter it when the change is certain to be tried: after the question, and not for a dry run.

    Arguments:
        user: who makes the change; '' where nobody knows.
        source: by which way: 'cli', 'web', 'api' or 'admin'.
        verb: the command's name: 'pause', 'calendar set'.
        names: all entries, calendars or tokens that it is about, perhaps thousands; the first are kept.
        details: what was given, perhaps with schedules and times. Secrets in it are masked.
        host: the machine of the user's shell, or the address of their browser.
        before: what some of the details were before, and what was removed; what is the same is left out.

    Raises:
        StoreUnavailable: Redis can't be reached; nothing was changed.
        StoreCorrupt: the key of the audit list has another type; nothing was changed.
    """
    store, all_names = Store(app), list(names)
    record = AuditRecord(
        shorten(user, MAX_TEXT),
        source,
        shorten(verb, MAX_TEXT),
        tuple(shorten(str(name), MAX_NAME) for name in all_names[:MAX_NAMES]),
        len(all_names),
        _without_secrets(details or {}),
        host=shorten(host, MAX_TEXT),
        before=_without_secrets(_changed(before or {}, details or {})),
    )
    written = ""
    try:
        written = add_audit_record(store, record)
    except StoreRefused as exc:  # without memory, say, when removing is what helps
        logger.warning("beat: %s of %s isn't in the audit list: %s", record.verb, printable(user), exc)
    try:
        yield
    except BaseException as exc:
        if written and not isinstance(exc, StoreUnavailable):
            failed = replace(record, details={}, before={}, outcome=f"failed: {_reason_of(exc)}", of=written)
            with suppress(RedBeatError):
                call_briefly(lambda: add_audit_record(store, failed), PATIENCE_SECONDS)
        raise


def given_of(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return what an entry was given, as details: without what is empty, and without what runs made of it."""
    try:
        fields = arguments_of(entry)
    except EntryError:  # a schedule of a class that isn't registered here
        return {"task": entry.task}
    return {
        field: value
        for field, value in fields.items()
        if field not in ("name", *STATE_FIELDS, *EXPORTED_FIELDS)
        and value not in (None, [], {})
        and (field, value) != _ENABLED
    }


def details_in_words(record: AuditRecord, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """Yield the details of a record and their texts, with what they were before, and times in ``zone``."""
    for name in dict.fromkeys((*record.details, *record.before)):
        now = _in_words(name, record.details.get(name), zone)
        if name not in record.before:
            yield name, now
            continue
        was = _in_words(name, record.before[name], zone)
        yield name, f"{was} -> {now}" if was != now else f"{now} (another value, hidden)"


def _in_words(name: str, value: Any, zone: tzinfo) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if name in ("args", "kwargs", "options"):  # an argument is what the task gets
        return text
    if name == "schedule" or (isinstance(value, dict) and "__type__" in value):
        text = schedule_in_short(value)
    return in_words_of(in_utc(text), zone)


def find_records(
    app: Any,
    *,
    name: str | None = None,
    user: str | None = None,
    verb: str | None = None,
    since: datetime | None = None,
    before_id: str | None = None,
    limit: int | None = None,
) -> list[AuditRecord]:
    """Return the records that are looked for, the newest first.

    Arguments:
        name: of an entry, calendar or token. Of a change of more than ``MAX_NAMES`` the first are known, and
            the pattern that they were chosen by.
        user: a pattern; * and ? are wildcards.
        verb: likewise; 'calendar' also finds 'calendar set'.
        before_id: the id of the last record that was shown before.

    Raises:
        ValueError: ``before_id`` isn't an id.
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """

    def is_sought(record: AuditRecord) -> bool:
        return (
            (name is None or _is_about(record, name))
            and (user is None or fnmatchcase(record.user, user))
            and (verb is None or fnmatchcase(record.verb, verb) or record.verb.split(" ")[0] == verb)
        )

    is_filtered = (name, user, verb) != (None, None, None)
    page = PAGE if limit is None or is_filtered else min(limit, PAGE)
    return list(islice(filter(is_sought, _records(Store(app), since, before_id, page)), limit))


def _records(store: Store, since: datetime | None, before_id: str | None, page: int) -> Iterator[AuditRecord]:
    while True:
        found = read_audit_records(store, before_id, page)
        for record in found:
            if since is not None and record.at < since:
                return
            yield record
        if len(found) < page or not found:
            return
        before_id = found[-1].id


def _is_about(record: AuditRecord, name: str) -> bool:
    if shorten(name, MAX_NAME) in record.names:
        return True
    pattern = record.details.get("match")
    return record.count > len(record.names) and isinstance(pattern, str) and fnmatchcase(name, pattern)


def _changed(before: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in before.items() if _text_of(value) != _text_of(details.get(name))}


def _text_of(value: Any) -> str:
    given = value.isoformat() if isinstance(value, datetime) else value
    try:
        return json.dumps(plain_json(given), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _without_secrets(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``details`` as plain JSON without secrets, the longer values as the beginnings of their JSON."""
    found: dict[str, Any] = {}
    size = 0
    for name, value in details.items():
        given = value.isoformat() if isinstance(value, datetime) else value
        try:
            shown = _masked(str(name), plain_json(given))
            text = json.dumps(shown, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            shown = text = shorten(mask_secrets(str(value)), MAX_DETAIL)
        if len(text) > MAX_DETAIL:
            shown = shorten(shown if isinstance(shown, str) else text, MAX_DETAIL)
        size += len(name) + min(len(text), MAX_DETAIL)
        if size > MAX_DETAILS:
            found["more"] = len(details) - len(found)
            break
        found[str(name)] = shown
    return found


def _masked(name: str, value: Any) -> Any:
    """Return a value from JSON without secrets; ``name``: of the field or argument that has it."""
    if is_secret_name(name) and value is not None:
        return MASK
    if isinstance(value, dict):
        return {key: _masked(key, one) for key, one in value.items()}
    if isinstance(value, list):
        return [_masked(name, one) for one in value]
    shown = shown_value(name, value)
    return mask_secrets(shown) if isinstance(shown, str) and name != "ping_url" else shown


def _reason_of(exc: BaseException) -> str:
    if isinstance(exc, KeyboardInterrupt):
        return "interrupted"
    is_sentence = isinstance(exc, (RedBeatError, CommandLineError))
    words = str(exc) if is_sentence else f"{type(exc).__name__}: {exc}"
    return shorten(mask_secrets(printable(words)), MAX_DETAIL)
