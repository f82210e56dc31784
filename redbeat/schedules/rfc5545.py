"""Recurrence rules as RFC 5545 writes them, 'FREQ=DAILY;BYHOUR=9', read into arguments of ``rrule``, and
written. Pure.

Besides what the RFC knows, a time may have an offset, 20300101T090000+0100: all that is stored of a start's
time zone. Invariant: an error names the part of the rule that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import Any

from dateutil.rrule import FR, MO, SA, SU, TH, TU, WE

from redbeat.config.suggestions import did_you_mean
from redbeat.schedules.recurrence import FREQUENCIES
from redbeat.schedules.timezones import instant_of, zone_called

_WEEKDAYS = {"MO": MO, "TU": TU, "WE": WE, "TH": TH, "FR": FR, "SA": SA, "SU": SU}
_DAY = re.compile(r"(?P<nth>[+-]?\d{1,3})?(?P<day>MO|TU|WE|TH|FR|SA|SU)")
_MOMENT = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d))?(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII)

#: the parts that are lists of whole numbers, and their names as arguments
_LISTS = {
    "BYMONTH": "bymonth",
    "BYWEEKNO": "byweekno",
    "BYYEARDAY": "byyearday",
    "BYMONTHDAY": "bymonthday",
    "BYEASTER": "byeaster",
    "BYHOUR": "byhour",
    "BYMINUTE": "byminute",
    "BYSECOND": "bysecond",
    "BYSETPOS": "bysetpos",
}
_PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST", *_LISTS)


def read_rule(text: str, zone: tzinfo) -> dict[str, Any]:
    r"""Return the arguments of ``rrule`` for the rule ``text``; dtstart is among them if it has a DTSTART.

    Arguments:
        text: its lines end with a newline, or with '\n' written out, as shells leave it.
        zone: the time zone of times that have none.

    Raises:
        ValueError: a part is wrong; the message names it.
    """
    start: datetime | None = None
    parts = ""
    for line in re.split(r"\s+|\\n", text.strip()):
        head = line.upper()
        if head.startswith("DTSTART"):
            start = _read_start(line, zone)
        elif parts:
            raise ValueError("there is more than one rule, and an entry has one.")
        else:
            parts = head.removeprefix("RRULE:")
    if not parts:
        raise ValueError("the rule is missing, such as FREQ=DAILY;BYHOUR=9.")
    fields = _read_parts(parts, zone)
    if "count" in fields and start is None:
        raise ValueError(
            "COUNT: needs a DTSTART to count from, as 'DTSTART:20300101T090000 RRULE:FREQ=DAILY;COUNT=3'."
        )
    if start is not None:
        fields["dtstart"] = start
    return fields


def _read_start(line: str, zone: tzinfo) -> datetime:
    head, _, value = line.partition(":")
    name, _, zone_name = head.partition("=")
    if name.upper() == "DTSTART;TZID":
        zone = zone_called(zone_name)
    elif head.upper() != "DTSTART":
        raise ValueError(
            f"{head}: is no DTSTART, such as DTSTART:… or DTSTART;TZID=Europe/Berlin:20300101T090000."
        )
    return _read_moment("DTSTART", value.upper(), zone, time.min)


def _read_parts(text: str, zone: tzinfo) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    seen = set()
    for part in filter(None, text.split(";")):
        name, equals, value = part.partition("=")
        if name not in _PARTS:
            raise ValueError(f"{name or part}: a rule has no such part.{did_you_mean(name, _PARTS)}")
        if not equals or not value:
            raise ValueError(f"{name}: it has no value.")
        if name in seen:
            raise ValueError(f"{name}: is there twice.")
        seen.add(name)
        if name == "FREQ":
            if value not in FREQUENCIES:
                raise ValueError(f"FREQ: must be one of {', '.join(FREQUENCIES)}, not {value}.")
            fields["freq"] = FREQUENCIES[value]
        elif name in ("INTERVAL", "COUNT"):
            fields[name.lower()] = _whole(name, value, least=1)
        elif name == "UNTIL":
            fields["until"] = _read_moment(name, value, zone, time(23, 59, 59))
        elif name == "WKST":
            fields["wkst"] = _weekday(name, value)
        elif name == "BYDAY":
            fields["byweekday"] = [_weekday(name, day) for day in value.split(",")]
        else:
            fields[_LISTS[name]] = [_whole(name, number) for number in value.split(",")]
    if "freq" not in fields:
        raise ValueError(f"FREQ: is missing: one of {', '.join(FREQUENCIES)}.")
    return fields


def _whole(name: str, text: str, least: int | None = None) -> int:
    if not re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII) or (least is not None and int(text) < least):
        raise ValueError(f"{name}: {text} is no whole number{'' if least is None else f' from {least}'}.")
    return int(text)


def _weekday(name: str, text: str) -> Any:
    match = _DAY.fullmatch(text)
    if match is None or (name == "WKST" and match["nth"]) or (match["nth"] and not int(match["nth"])):
        allowed = [*_WEEKDAYS, *([] if name == "WKST" else ["or -1FR"])]
        raise ValueError(f"{name}: must be one of {', '.join(allowed)}, not {text}.")
    day = _WEEKDAYS[match["day"]]
    if name == "WKST":
        return day.weekday
    return day(int(match["nth"])) if match["nth"] else day


def _read_moment(name: str, text: str, zone: tzinfo, time_of_day: time) -> datetime:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{name}: {text} is no time, such as 20301224T180000 or 20301224T170000Z.")
    year, month, day, hour, minute, second = match.groups()[:6]
    try:
        if hour is not None:
            time_of_day = time(int(hour), int(minute), int(second))
        moment = datetime.combine(datetime(int(year), int(month), int(day)), time_of_day)  # noqa: DTZ001 - below
        if match[8]:
            offset = timedelta(hours=int(match[9]), minutes=int(match[10]))
            return moment.replace(tzinfo=timezone(-offset if match[8] == "-" else offset))
    except ValueError as exc:
        raise ValueError(f"{name}: {text}: {exc}.") from exc
    return moment.replace(tzinfo=timezone.utc) if match[7] else instant_of(moment, zone).astimezone(zone)


def write_rule(fields: Mapping[str, Any], start: datetime | None, until: datetime | None) -> str:
    """Return the text of a rule, which ``read_rule`` reads as the same one.

    Arguments:
        fields: as in the rule's JSON, without its times; what is None is left out.
        start: its DTSTART; None: it is left out.
        until: its end, if it has one.

    Raises:
        ValueError, TypeError, KeyError: a field is none that a rule has.
    """
    names = {number: name for name, number in FREQUENCIES.items()}
    parts = [f"FREQ={names[fields['freq']]}"]
    if fields.get("interval", 1) != 1:
        parts.append(f"INTERVAL={fields['interval']}")
    if fields.get("count") is not None:
        parts.append(f"COUNT={fields['count']}")
    if until is not None:
        parts.append(f"UNTIL={_written(until)}")
    if fields.get("byweekday") is not None:
        parts.append(f"BYDAY={','.join(map(_written_day, _many(fields['byweekday'])))}")
    for part, name in _LISTS.items():
        if fields.get(name) is not None:
            parts.append(f"{part}={','.join(map(str, _many(fields[name])))}")
    if fields.get("wkst") is not None:
        parts.append(f"WKST={_written_day(fields['wkst'])}")
    rule = ";".join(parts)
    return rule if start is None else f"DTSTART:{_written(start)} RRULE:{rule}"


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _written(moment: datetime) -> str:
    offset = moment.utcoffset()
    return f"{moment:%Y%m%dT%H%M%S}{f'{moment:%z}' if offset else 'Z'}"


def _written_day(day: Any) -> str:
    number, nth = (day["wkday"], day.get("n")) if isinstance(day, dict) else (day, None)
    return f"{nth or ''}{list(_WEEKDAYS)[number]}"
