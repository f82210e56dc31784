"""The audit list: a stream of who has changed what, the last 10,000 records or so.

Invariant: nothing here is needed to run the schedule, and a record that somebody else has spoilt is shown as
far as it can be read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from redbeat.log.text import as_stored
from redbeat.store.nodes import Command
from redbeat.store.records import text_of
from redbeat.store.store import Store

#: about how many records are kept
MAX_RECORDS = 10_000

#: the fields of a record that are texts, and all of them as they are shown
_TEXTS = "user", "host", "source", "verb", "outcome", "of"
_SHOWN = "id", "at", *_TEXTS[:4], "names", "count", "details", "before", *_TEXTS[4:]

_EPOCH = datetime.fromtimestamp(0, timezone.utc)
#: of a later one the time is not shown: another program has added it with an id of its own
_LAST_MS = 253_370_764_800_000  # 9999-01-01
#: the id of a record: milliseconds, and a number
_ID = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")


@dataclass(frozen=True)
class AuditRecord:
    """One change, or that it has failed.

    Attributes:
        user: who has made it, as the shell or the dashboard knows them; '' where neither does.
        source: by which way: 'cli', 'web', 'api' or 'admin'.
        verb: the command's name, also where no command was called: 'pause', 'calendar set'.
        names: of the first of the entries, calendars or tokens that it was about.
        count: of how many.
        details: what was given, as JSON has it, shortened and without secrets.
        outcome: '', or 'failed: ' and why.
        host: the machine of the shell, or the address of the browser; '': not known.
        of: the id of the record of the change, in one which says that it has failed.
        id: of the record, by which it is found again; '' before it is stored.
        at: when it was stored, by the server's clock.
        before: what some of the details were before, and what was removed, shortened and without secrets;
            null: it wasn't set.
    """

    user: str
    source: str
    verb: str
    names: tuple[str, ...] = ()
    count: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    outcome: str = ""
    host: str = ""
    of: str = ""
    id: str = ""
    at: datetime = _EPOCH
    before: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        shown = {name: getattr(self, name) for name in _SHOWN}
        shown |= {name: shown[name] or None for name in ("host", "outcome", "of")}
        return shown | {"at": self.at.isoformat(), "names": list(self.names)}


def add_audit_record(store: Store, record: AuditRecord) -> str:
    """Add a record, and return its id.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    texts = {name: getattr(record, name) for name in _TEXTS} | {"count": str(record.count)}
    texts |= {"names": json.dumps(record.names), "details": json.dumps(record.details)}
    texts["before"] = json.dumps(record.before) if record.before else ""
    fields: Any = {name: as_stored(text) for name, text in texts.items() if text}
    key = store.keys.audit
    added = store.ask(Command("xadd", key, fields, maxlen=MAX_RECORDS, approximate=True))
    return str(text_of(added))


def read_audit_records(store: Store, before_id: str | None = None, count: int = 50) -> list[AuditRecord]:
    """Return at most ``count`` records, the newest first.

    Arguments:
        before_id: the id of the last record that was read before; '' and None: none was.

    Raises:
        ValueError: ``before_id`` isn't an id.
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    key, most = store.keys.audit, "+"
    if before_id:
        given = _ID.fullmatch(before_id)
        if given is None:
            raise ValueError(
                f"{before_id!r} is not an id of a record; the last record that was shown has one."
            )
        most = f"({given[1]}-{given[2] or 0}"
        if most == "(0-0":
            return []
    found = store.ask(Command("xrevrange", key, max=most, count=count))
    return [_record_of(str(text_of(one)), fields) for one, fields in found]


def _record_of(id: str, fields: Any) -> AuditRecord:  # noqa: A002 - it is what Redis calls it
    texts = {str(text_of(name)): str(text_of(value)) for name, value in (fields or {}).items()}
    names, details = _json(texts.get("names"), list), _json(texts.get("details"), dict)
    shown = tuple(name for name in names if isinstance(name, str))
    count = texts.get("count", "")[:20]
    return AuditRecord(
        **{name: texts.get(name, "") for name in _TEXTS},
        names=shown,
        count=max(int(count) if count.isdecimal() else 0, len(shown)),
        details=details,
        before=_json(texts.get("before"), dict),
        id=id,
        at=_EPOCH + timedelta(milliseconds=min(int(id.partition("-")[0]), _LAST_MS)),
    )


def _json(text: str | None, kind: type[Any]) -> Any:
    """Return the array or object in ``text``; an empty one where there is none."""
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, kind) else kind()
