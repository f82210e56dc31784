"""The grammar of typed times: what each form means, and that every place that takes a time understands it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import click
import pytest

from redbeat.cli import redbeat
from redbeat.cli.parameters import BACK
from redbeat.schedules.times import TypedTime, read_seconds, read_time
from redbeat.web.api.resources import OPERATIONS

BERLIN = ZoneInfo("Europe/Berlin")
#: a Tuesday
NOW = datetime(2026, 11, 24, 13, 0, tzinfo=BERLIN)

#: form, the time ahead, the time back
FORMS = [
    ("now", "11-24 13:00", "11-24 13:00"),
    ("2h", "11-24 15:00", "11-24 11:00"),
    ("1h 30m", "11-24 14:30", "11-24 11:30"),
    ("in 2h", "11-24 15:00", "11-24 15:00"),
    ("2h ago", "11-24 11:00", "11-24 11:00"),
    ("today", "11-24 00:00", "11-24 00:00"),
    ("Today 9:00", "11-24 09:00", "11-24 09:00"),
    ("yesterday", "11-23 00:00", "11-23 00:00"),
    ("yesterday 23:00", "11-23 23:00", "11-23 23:00"),
    ("last night", "11-23 22:00", "11-23 22:00"),
    ("tomorrow", "11-25 00:00", "11-25 00:00"),
    ("tomorrow at 9:00:30", "11-25 09:00", "11-25 09:00"),
    ("18:30", "11-24 18:30", "11-23 18:30"),
    ("at 12:00", "11-25 12:00", "11-24 12:00"),
    ("13:00", "11-25 13:00", "11-23 13:00"),
    ("monday 8:00", "11-30 08:00", "11-23 08:00"),
    ("Mon at 8:00", "11-30 08:00", "11-23 08:00"),
    ("wed", "11-25 00:00", "11-18 00:00"),
    ("tuesday 5:00", "12-01 05:00", "11-24 05:00"),
    ("tue 14:00", "11-24 14:00", "11-17 14:00"),
    ("2026-12-24T18:00+01:00", "12-24 18:00", "12-24 18:00"),
    ("2026-12-24T17:00Z", "12-24 18:00", "12-24 18:00"),
]
#: what REST takes with an offset only
NAIVE = [
    ("2026-12-24", "12-24 00:00"),
    ("2026-12-24T18:00", "12-24 18:00"),
    ("2026-12-24 18:00", "12-24 18:00"),
]

CLI_OPTIONS = {
    "list --due-before", "count --due-before", "next --after", "timeline --start", "runs --since", "why --at",
    "add --at", "add --start-time", "add --end-time", "set --at", "set --start-time", "set --end-time",
    "pause --until", "backfill --from", "backfill --to", "rerun --due", "rerun --since", "audit --since",
    "token add --expires",
}  # fmt: skip
REST_PARAMETERS = {
    "GET /entries due_before", "GET /count due_before", "GET /entries/{name}/next after", "GET /next after",
    "GET /entries/{name}/why at", "PUT /entries/{name}/pause until", "PUT /pause until", "GET /runs since",
    "GET /entries/{name}/runs since", "PUT /entries/{name}/backfill from", "PUT /entries/{name}/backfill to",
    "PUT /backfill from", "PUT /backfill to", "PUT /entries/{name}/rerun due", "PUT /rerun since",
    "GET /timeline start", "GET /audit since",
}  # fmt: skip


def shown(moment: datetime) -> str:
    return f"{moment.astimezone(BERLIN):%m-%d %H:%M}"


@pytest.mark.parametrize(("text", "ahead", "back"), [*FORMS, *((text, at, at) for text, at in NAIVE)])
def test_each_form_has_one_meaning_ahead_and_one_back(text: str, ahead: str, back: str) -> None:
    assert shown(read_time(text, NOW, BERLIN, ahead=True)) == ahead
    assert shown(read_time(text, NOW, BERLIN, ahead=False)) == back


@pytest.mark.parametrize(
    "text",
    [
        "", "mond", "monday tuesday", "monday 25:00", "at monday", "next monday", "at noon", "in 2h ago",
        "-2h", "5", "2030", "1969-01-01", "9999-06-01", "99999999w", "2030-13-01T00:00",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time; write it as 2h|is outside the years"):
        read_time(text, NOW, BERLIN, ahead=True)


def cli_options(group: click.Group = redbeat, path: str = "") -> Iterator[tuple[str, click.ParamType]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from cli_options(command, f"{path}{name} ")
        for parameter in command.params:
            if parameter.type.name == "time":
                yield f"{path}{name} {parameter.opts[0]}", parameter.type


def test_every_time_on_the_command_line_takes_every_form() -> None:
    options = dict(cli_options())
    assert options.keys() == CLI_OPTIONS
    for name, kind in options.items():
        for text, ahead, back in [*FORMS, *((text, at, at) for text, at in NAIVE)]:
            typed = kind.convert(text, None, None)
            assert shown(typed.at(NOW, BERLIN)) == (back if kind is BACK else ahead), f"{name} {text}"


def test_every_time_of_rest_takes_every_form_with_an_offset() -> None:
    fields = {
        f"{operation.method} {operation.path} {field.name}": field
        for operation in OPERATIONS
        for field in (*operation.query, *(operation.body.fields if operation.body else ()))
        if "examples" in field.schema
    }
    assert fields.keys() == REST_PARAMETERS
    for name, field in fields.items():
        for text, ahead, back in FORMS:
            typed: TypedTime = field.read(field.read_text(text))
            assert shown(typed.at(NOW, BERLIN)) == (ahead if "2h" in field.schema["examples"] else back), name
        for text, _ in NAIVE:
            with pytest.raises(ValueError, match="must have an offset"):
                field.read(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h30m", 5400), ("90", 90), ("1.5h", 5400), ("2d", 172_800), ("1w", 604_800), ("250ms", 0.25),
        ("1H 30M", 5400), ("5 min", 300), ("1e3", 1000), (".5s", 0.5),
    ],
)  # fmt: skip
def test_duration_is_read(text: str, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1x", "1h30", "-1", "nan", "1.2.3", "٣s"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a length of time; write it"):
        read_seconds(text)
