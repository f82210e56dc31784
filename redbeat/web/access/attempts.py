"""Wrong passwords: how many may be tried, from one address and from all of them together.

Owns how many tries are left to whom, in the memory of this process, and bounded. Invariants: a password that
comes too soon isn't looked at, so that nobody learns whether it is the right one; nothing waits, as somebody
who is refused is told when to come again; a browser in which somebody has logged in has tries of its own,
which nobody else can use up, and an address from which somebody has logged in doesn't share those of
strangers.

Tokens need none of this: those of ``celery redbeat token``, the link's, and what cookies have are 256 random
bits. A million tries a second for a million years are fewer than one in 10**50 of them.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from redbeat.log.logger import web_logger as logger
from redbeat.log.text import printable, shorten

#: how many wrong passwords an address, or a browser that is known, may send at once, and then one in how many
#: seconds: 14,400 a day
TRIES, SECONDS_EACH = 10, 6.0
#: the same for all strangers together: 86,400 a day, however many addresses somebody has
ALL_TRIES, ALL_SECONDS_EACH = 100, 1.0
#: how many addresses and browsers are remembered; the one that has tried least lately is forgotten
MAX_KEPT = 10_000
#: how often it is logged that passwords are tried, seconds
SAID_EVERY_SECONDS = 60.0


class TooManyAttempts(Exception):
    """Somebody has sent too many wrong passwords; this one wasn't looked at.

    Attributes:
        seconds: when to come again, a whole number.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = max(math.ceil(seconds), 1)
        super().__init__(f"There were too many wrong passwords. Wait {self.seconds} s before you try again.")


@dataclass
class _Tries:
    """What is left to somebody: it grows with time.

    Attributes:
        most: how much it is at first, and at most.
        seconds_each: how long it takes to grow by one.
        wrong: a digest of what was wrong last.
        has_got_in: somebody has sent the right one.
    """

    most: int
    seconds_each: float
    at: float
    left: float = field(init=False)
    wrong: bytes = b""
    has_got_in: bool = False

    def __post_init__(self) -> None:
        self.left = float(self.most)

    def wait(self, now: float) -> float:
        """Return for how many seconds nothing more may be tried; 0: it may."""
        self.left = min(self.left + (now - self.at) / self.seconds_each, self.most)
        self.at = now
        return max((1.0 - self.left) * self.seconds_each, 0.0)


class Attempts:
    """The tries of all who send passwords to one dashboard.

    Arguments:
        clock: returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, _Tries] = OrderedDict()
        #: those who have got in: strangers, however many, don't make them forgotten
        self._welcome: OrderedDict[str, _Tries] = OrderedDict()
        self._all = _Tries(ALL_TRIES, ALL_SECONDS_EACH, clock())
        self._secret = secrets.token_bytes(32)
        self._said_at = -math.inf

    def check(self, address: str, mark: str, given: bytes, is_right: Callable[[], bool]) -> bool:
        """Return what ``is_right`` does, which is called only if somebody may try.

        Arguments:
            address: of the client, as a trusted proxy has it.
            mark: what ``mark_of`` has given this browser; '' for none.
            given: what they have sent.

        Raises:
            TooManyAttempts: they must wait.
        """
        now, is_known = self._clock(), self._is_mark(mark)
        who = f"mark {mark}" if is_known else _network_of(address)
        tries = self._tries_of(who, now)
        digest = hmac.digest(self._secret, given, "sha256")
        if hmac.compare_digest(digest, tries.wrong):
            return False  # nobody learns anything from the same once more: a page that is left open asks so
        is_stranger = not (is_known or tries.has_got_in)
        seconds = max(tries.wait(now), self._all.wait(now) if is_stranger else 0.0)
        if seconds > 0:
            self._say(address, now)
            raise TooManyAttempts(seconds)
        if is_right():
            tries.has_got_in = True
            self._kept.pop(who, None)
            _keep(self._welcome, who, tries)
            return True
        tries.wrong = digest
        tries.left -= 1
        if is_stranger:
            self._all.left -= 1
        return False

    def mark_of(self, mark: str) -> str:
        """Return ``mark``, if it is one of a browser in which somebody has logged in, else a new one."""
        if self._is_mark(mark):
            return mark
        name = secrets.token_urlsafe(16)
        return f"{name}.{self._signature_of(name)}"

    def _is_mark(self, mark: str) -> bool:
        name, _, signature = mark.partition(".")
        return hmac.compare_digest(signature.encode(), self._signature_of(name).encode())

    def _signature_of(self, name: str) -> str:
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def _tries_of(self, who: str, now: float) -> _Tries:
        kept = self._welcome if who in self._welcome else self._kept
        tries = kept.get(who) or _Tries(TRIES, SECONDS_EACH, now)
        _keep(kept, who, tries)
        return tries

    def _say(self, address: str, now: float) -> None:
        if now >= self._said_at + SAID_EVERY_SECONDS:
            self._said_at = now
            logger.warning(
                "web: %s, or others meanwhile, sent too many wrong passwords, and must wait between them",
                shorten(printable(address), 100) or "a local client",
            )


def _keep(kept: OrderedDict[str, _Tries], who: str, tries: _Tries) -> None:
    kept[who] = tries
    kept.move_to_end(who)
    if len(kept) > MAX_KEPT:
        kept.popitem(last=False)


def _network_of(address: str) -> str:
    """Return whose tries those from ``address`` are: who has one address of IPv6 has 2**64."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return shorten(address, 100)
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return str(ip_network((parsed, 64), strict=False)) if parsed.version == 6 else str(parsed)
