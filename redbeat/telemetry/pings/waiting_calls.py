"""Calls that wait for their turn: those of one service in their order, and no service waits for another.

Invariant: their number is bounded; the oldest are left out, and counted. A service that fails is left alone
for a while, and of each entry it then keeps what is newest: what happened long ago helps nobody. Pure.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from redbeat.config.ping_urls import PingUrl

#: how many calls wait at the most, and for how many services
MAX_CALLS, MAX_SERVICES = 1_000, 100

#: for how long a service is left alone after a failure, and after many in a row; seconds
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5.0, 60.0

#: a call that has waited longer is left out, seconds
LIFE_SECONDS = 600.0


@dataclass(frozen=True)
class Call:
    """One call that is to be made.

    Attributes:
        url: what is called.
        entry: the name of the entry that it is about; where a service fails, a newer call replaces an older.
        since: when that happened, monotonic.
    """

    url: PingUrl
    entry: str
    since: float


@dataclass
class _Service:
    calls: deque[Call] = field(default_factory=deque)
    failures: int = 0
    again_at: float = 0.0
    left_out: int = 0


class WaitingCalls:
    """The calls of one beat."""

    def __init__(self) -> None:
        self._services: OrderedDict[str, _Service] = OrderedDict()  # whose turn it is comes first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, call: Call) -> None:
        """Let ``call`` wait; if there are too many, the oldest of the service with the most is left out."""
        service = self._services.get(call.url.service)
        if service is None:
            if len(self._services) >= MAX_SERVICES:
                fewest = min(self._services, key=lambda name: len(self._services[name].calls))
                self._count -= len(self._services.pop(fewest).calls)
            service = self._services[call.url.service] = _Service()
        if service.failures:
            self._drop_older(service, call.entry)
        service.calls.append(call)
        self._count += 1
        if self._count > MAX_CALLS:
            fullest = max(self._services.values(), key=lambda one: len(one.calls))
            fullest.calls.popleft()
            fullest.left_out += 1
            self._count -= 1

    def take(self, now: float) -> Call | None:
        """Return the call whose turn it is; None: none is now."""
        for name, service in list(self._services.items()):
            while service.calls and service.calls[0].since < now - LIFE_SECONDS:
                service.calls.popleft()
                service.left_out += 1
                self._count -= 1
            if service.calls and service.again_at <= now:
                self._services.move_to_end(name)
                self._count -= 1
                return service.calls.popleft()
        return None

    def seconds_to_next(self, now: float) -> float | None:
        """Return how long none's turn is; None: none waits."""
        times = [service.again_at for service in self._services.values() if service.calls]
        return max(min(times) - now, 0.0) if times else None

    def note_failed(self, call: Call, now: float) -> None:
        """Note that ``call`` is to be made again, unless there is a newer one about its entry."""
        service = self._services.setdefault(call.url.service, _Service())
        if not service.failures:
            self._keep_newest(service)
        service.failures += 1
        service.again_at = now + min(PAUSE_SECONDS * 2 ** min(service.failures - 1, 10), MAX_PAUSE_SECONDS)
        if any(one.entry == call.entry for one in service.calls):
            service.left_out += 1
        else:
            service.calls.appendleft(call)
            self._count += 1

    def note_well(self, name: str) -> int:
        """Note that a service answers; return how many calls were left out since it last did."""
        service = self._services.get(name)
        if service is None:
            return 0
        left_out, service.left_out, service.failures = service.left_out, 0, 0
        if not service.calls:
            del self._services[name]
        return left_out

    def _keep_newest(self, service: _Service) -> None:
        newest = {one.entry: one for one in service.calls}
        self._replace(service, [one for one in service.calls if newest[one.entry] is one])

    def _drop_older(self, service: _Service, entry: str) -> None:
        self._replace(service, [one for one in service.calls if one.entry != entry])

    def _replace(self, service: _Service, calls: list[Call]) -> None:
        dropped = len(service.calls) - len(calls)
        service.calls = deque(calls)
        service.left_out += dropped
        self._count -= dropped
