"""The types of values on the command line: lengths of time, times, JSON, zones; with errors in words.

Invariant: nothing here asks Redis, so a wrong value is refused before anything is read or written.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any

import click

from redbeat.decoder import read_json
from redbeat.schedules.times import TypedTime, read_seconds
from redbeat.schedules.timezones import zone_called


class Value(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click only
    """A value that ``read`` makes of its text, or refuses with a ValueError that says why."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of the text ``value``."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


DURATION = Value("duration", read_seconds)
#: times; '2h', 'monday' and '18:30' are ahead of now, or back from it
AHEAD = Value("time", partial(TypedTime, ahead=True))
BACK = Value("time", partial(TypedTime, ahead=False))
DATE = Value("date", date.fromisoformat)
JSON_ARRAY = Value("JSON", partial(read_json, kind=list, what="an array, as [1, 2]"))
JSON_OBJECT = Value("JSON", partial(read_json, kind=dict, what='an object, as {"key": 1}'))
ZONE = Value("zone", zone_called)
