"""The options that ``add`` and ``set`` share: a schedule, the task's arguments, its options, and the policy.

Owns which option stands for which field. Invariant: what isn't given isn't in what these functions return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo
from typing import Any

import click

from redbeat.cli.operations import options_of
from redbeat.cli.parameters import AHEAD, DURATION, JSON_ARRAY, JSON_OBJECT, Value
from redbeat.cli.session import Command
from redbeat.entries.notation import parse_schedule
from redbeat.operations.reading import route_entry
from redbeat.policy.fields import Kind
from redbeat.policy.policy import DEFINITION, FIELDS, PAUSE_FIELDS, ROWS
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.schedules.occurrences import rrule
from redbeat.schedules.rfc5545 import read_rule
from redbeat.schedules.times import TypedTime

#: the options for a schedule: the forms of the notation in files
SCHEDULES = ("every", "cron", "at", "rrule", "solar")
ROUTING = ("queue", "exchange", "exchange_type", "routing_key", "priority")
#: options of ``apply_async`` that have an option of their own here
TASK_OPTIONS = (*ROUTING, "expires")
#: options for fields of the policy, without those of ``pause`` and ``resume``
POLICY = tuple(field for field in FIELDS if field not in PAUSE_FIELDS)

routing_options = options_of(route_entry, *ROUTING)


def _option_of(field: str) -> Callable[[Command], Command]:
    """Return the option for a field of the policy."""
    row, option = ROWS[field], f"--{field.replace('_', '-')}"
    if row.kind is Kind.FLAG:
        return click.option(f"{option}/--no-{option[2:]}", default=None, help=row.help)
    types: dict[Kind, Any] = {
        Kind.TIME: AHEAD,
        Kind.COUNT: click.IntRange(1, row.most),
        Kind.CHOICE: click.Choice(row.values),
        Kind.TEXT: str,
    }
    checked = Value(row.kind.metavar or "duration", lambda text: row.kind.check(text, row))
    return click.option(option, type=types.get(row.kind, checked), help=row.help)


def _given_option(field: str, kind: Value, more: str = "") -> Callable[[Command], Command]:
    """Return the option for a field of the definition."""
    row = DEFINITION[field]
    about = f"{row.about.rstrip('.')}: '{row.example}'.{more}"
    return click.option(f"--{field}", type=kind, help=about)


_OPTIONS = (
    click.option("--every", metavar="DURATION", help="Run at this interval: 30s, 1h30m, or 0.2 for seconds."),
    click.option(
        "--cron",
        metavar="CRON",
        help="Run by a cron expression: five fields, such as '*/5 * * * mon-fri', or @daily.",
    ),
    click.option("--at", type=AHEAD, help="Run once, at this time: 2030-12-24T18:00."),
    click.option(
        "--rrule", metavar="RULE", help="Run by a recurrence rule of RFC 5545: 'FREQ=DAILY;BYHOUR=9'."
    ),
    click.option(
        "--solar",
        metavar="EVENT,LAT,LON",
        help="Run at an event of the sun at a place: sunset,52.5,13.4.",
    ),
    _given_option("args", JSON_ARRAY),
    _given_option("kwargs", JSON_OBJECT),
    routing_options,
    click.option(
        "--expires",
        type=DURATION,
        help="Skip the message when a worker has not started it within this time after it was sent.",
    ),
    _given_option("options", JSON_OBJECT, " They replace the stored ones."),
    *map(_option_of, POLICY),
)


def entry_options(command: Command) -> Command:
    """Give ``command`` the options of an entry, in their order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def changes_of(given: Mapping[str, Any], zone: tzinfo, now: datetime, stored_options: Any) -> dict[str, Any]:
    """Return the fields of an entry that the options ``given`` stand for, as ``update`` takes them.

    Arguments:
        zone: of times without one.
        now: by the server; a rule without a DTSTART begins then.
        stored_options: what the entry has by now, for those of which only some are given.
    """
    changes: dict[str, Any] = {name: given[name] for name in ("args", "kwargs", "options") if name in given}
    schedules = [name for name in SCHEDULES if name in given]
    if len(schedules) > 1:
        both = " and ".join(f"--{name}" for name in schedules)
        raise CommandLineError(f"{both} are two schedules, and an entry has one.", exits.USAGE)
    if schedules:
        changes["schedule"] = _schedule_of(schedules[0], given[schedules[0]], zone, now)
    own = {name: given[name] for name in TASK_OPTIONS if name in given}
    if own:
        changes["options"] = {**(changes.get("options", stored_options) or {}), **own}
    for name in POLICY:
        if name in given:
            value = given[name]
            changes[name] = value.at(now, zone) if isinstance(value, TypedTime) else value
    return changes


def _schedule_of(kind: str, value: Any, zone: tzinfo, now: datetime) -> Any:
    if kind == "at":
        value = value.at(now, zone).astimezone(zone)
    try:
        if kind == "rrule":
            return rrule(**{"dtstart": now.astimezone(zone), **read_rule(value, zone)})
        return parse_schedule({kind: value})
    except ValueError as exc:
        reason = str(exc).removeprefix(f"{kind}: ")
        raise CommandLineError(f"--{kind}: {reason}", exits.USAGE) from exc
