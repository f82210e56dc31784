"""The times of day that a rule names, counted and found by arithmetic, without listing them. Pure.

Times are whole seconds after midnight, or after the beginning of the hour or minute that they are in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence


class DayTimes:
    """Some units of a longer one, each with the same times in it: hours with minutes, minutes with seconds.

    Arguments:
        units: the numbers of the units, sorted, from 0.
        size: how long a unit is, in seconds.
        inner: the times in each unit; None: only its beginning.
    """

    __slots__ = ("_inner", "_inner_count", "_size", "_units", "count")

    def __init__(self, units: Sequence[int], size: int, inner: DayTimes | None = None) -> None:
        self._units, self._size, self._inner = units, size, inner
        self._inner_count = 1 if inner is None else inner.count
        #: how many times there are
        self.count: int = len(units) * self._inner_count

    def at(self, place: int) -> int:
        """Return the time at ``place``; the first is at 0."""
        unit, rest = divmod(place, self._inner_count)
        begin = self._units[unit] * self._size
        return begin if self._inner is None else begin + self._inner.at(rest)

    def count_before(self, second: int) -> int:
        """Return how many times are before ``second``, which is the place of the first that isn't."""
        unit, rest = divmod(second, self._size)
        place = bisect_left(self._units, unit)
        count = place * self._inner_count
        if rest and place < len(self._units) and self._units[place] == unit:
            count += 1 if self._inner is None else self._inner.count_before(rest)
        return count


def choose_times(times: DayTimes, positions: Iterable[int]) -> DayTimes:
    """Return the times at these positions, counted from 1, or from -1 at the end; others are ignored."""
    places = {place - 1 if place > 0 else times.count + place for place in positions}
    return DayTimes(tuple(times.at(place) for place in sorted(places) if 0 <= place < times.count), 1)
