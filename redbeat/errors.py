"""All exceptions that RedBeat itself raises.

::

    RedBeatError
     +-- ConfigurationError         a setting can't be used; nothing was written
     |    +-- RedBeatKeyExpiryError the server may evict the schedule
     +-- StoreUnavailable           Redis can't be reached (also redis ConnectionError)
     +-- StoreRefused               Redis answers, and refuses (also redis ResponseError)
     |    +-- LayoutChanged         the schedule was divided into other shards meanwhile; try again
     +-- ReshardRefused             the shards can't be changed now
     +-- StoreCorrupt               a key of the whole schedule holds a value of another type
     +-- ArgumentInvalid            a value that an operation was given (also ValueError)
     +-- EntryError                 something about one entry
     |    +-- DeclarationError      a schedule beside its task can't be used (also ConfigurationError)
     |    +-- EntryBusy             its overlap policy holds a run back that somebody sends by hand
     |    +-- EntryChanged          another program has changed it since it was loaded
     |    +-- EntryNotFound         no such entry (also KeyError)
     |    +-- EntryCorrupt          what stands in Redis can't be used (also ValueError)
     +-- RunNotSent                 a run that somebody asks for can't be sent
     |    +-- BrokerUnavailable     its broker can't be reached or used
     |    +-- CallRefused           its task can't be called so
     +-- MessageNotStored           a message can't be stored until its time (also kombu OperationalError)
     +-- MessageRefused             a message that can't be stored as it is (also ValueError)
     +-- CalendarError              a calendar can't be used (also ValueError)
     |    +-- CalendarNotFound      no such calendar (also KeyError)
     +-- FileError                  a file of entries can't be used (also ValueError)
     |    +-- OwnedByOthers         entries in it belong to another owner
     +-- AccessDenied               a user of the dashboard may not do this
     +-- CommandFailed              a singleton's command can't be started, or its watchdog is gone
     +-- LockError                  something about the lock
          +-- LockNotAcquired       a tick without the lock (also AttributeError)
          +-- LockLost              another beat holds the lock (also redis LockNotOwnedError)

Each has a sentence that the user can act on, and attributes with the data. The second bases are what users of
celery-redbeat 2.x catch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockNotOwnedError, ResponseError

from redbeat.log.text import printable

__all__ = [
    "AccessDenied",
    "ArgumentInvalid",
    "BrokerUnavailable",
    "CalendarError",
    "CalendarNotFound",
    "CallRefused",
    "CommandFailed",
    "ConfigurationError",
    "DeclarationError",
    "EntryBusy",
    "EntryChanged",
    "EntryCorrupt",
    "EntryError",
    "EntryNotFound",
    "FileError",
    "LayoutChanged",
    "LockError",
    "LockLost",
    "LockNotAcquired",
    "MessageNotStored",
    "MessageRefused",
    "OwnedByOthers",
    "RedBeatError",
    "RedBeatKeyExpiryError",
    "ReshardRefused",
    "RunNotSent",
    "StoreCorrupt",
    "StoreRefused",
    "StoreUnavailable",
]


class RedBeatError(Exception):
    """The base of all of them. Its sentence has no control characters, so a terminal can show it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))

    @property
    def plain(self) -> str:
        """The sentence for those who look at a page, without what is advice for beat."""
        return str(self)

    def add(self, sentence: str) -> None:
        """Add a sentence to what it says."""
        self.args = (f"{self} {printable(sentence)}", *self.args[1:])

    def __repr__(self) -> str:
        # Celery logs the repr, and that of redis-py's errors has no message
        return f"{type(self).__name__}({str(self)!r})"


class ArgumentInvalid(RedBeatError, ValueError):
    """A value that an operation was given is invalid; nothing was changed.

    Attributes:
        field: the name of the parameter.
        reason: what is wrong, the value and the remedy.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = printable(reason)


class ConfigurationError(RedBeatError):
    """A setting has a value that can't be used.

    Attributes:
        setting: the setting's name, lower case; None: several settings don't fit together.
    """

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class RedBeatKeyExpiryError(ConfigurationError):
    """The server may evict the schedule, and ``redbeat_key_expiry_check`` is 'raise'."""


class StoreUnavailable(RedBeatError, RedisConnectionError):
    """Redis can't be reached, or didn't answer in time.

    Arguments:
        advice: a sentence for beat.
    """

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(f"{message.removesuffix('.')}. ({advice})" if advice else message)
        self._plain = printable(message)

    @property
    def plain(self) -> str:
        return self._plain

    def add(self, sentence: str) -> None:
        super().add(sentence)
        self._plain = f"{self._plain.removesuffix('.')}. {printable(sentence)}"


class StoreRefused(RedBeatError, ResponseError):
    """Redis is there and refuses: a wrong password, a missing right, no memory left, a replica.

    Attributes:
        is_login: it refuses this name and password, so it refuses every other command as well.
    """

    def __init__(self, message: str, *, is_login: bool = False) -> None:
        super().__init__(message)
        self.is_login = is_login


class LayoutChanged(StoreRefused):
    """The schedule has been divided into another number of shards meanwhile; nothing was written.

    By the time that this is raised it is known where its entries are now, so trying again helps.
    """


class ReshardRefused(RedBeatError):
    """Entries can't be moved to other shards now: another process does so, or the layout is another one."""


class StoreCorrupt(RedBeatError):
    """A key that belongs to the whole schedule holds a value of another type.

    Attributes:
        key: that key.
    """

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class EntryError(RedBeatError):
    """Something is wrong with one entry.

    Attributes:
        key: the entry's full key in Redis, or its name where there is no key yet.
        done: how many entries ``save_many`` or ``delete_many`` had done before, whole chunks.
        problems: all that is wrong with the values, by field; {}: only the message is known.
    """

    def __init__(self, message: str, key: str, problems: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.done = 0
        self.problems = problems or {}


class DeclarationError(EntryError, ConfigurationError):
    """A schedule that stands beside its task, by ``@scheduled``, can't be used.

    Attributes:
        places: where it stands, as 'file:line'; for a name that is there twice, both.
    """

    def __init__(self, message: str, key: str = "", places: tuple[str, ...] = ()) -> None:
        super().__init__(message, key)
        self.places = places


class EntryChanged(EntryError):
    """Another user has changed, made or removed the entry since it was loaded; nothing was written.

    Attributes:
        revision: of what is there now, where the REST interface has been told which one to change.
    """

    revision: str | None = None


class EntryNotFound(EntryError, KeyError):
    """There is no entry under this key."""

    # KeyError would print the message's repr
    __str__ = Exception.__str__


class EntryCorrupt(EntryError, ValueError):
    """The entry in Redis under this key can't be used."""


class EntryBusy(EntryError):
    """A run is in progress, and the entry's ``overlap`` lets no other one start beside it.

    Attributes:
        task_id: the task id of that run; None: it isn't known.
    """

    def __init__(self, message: str, key: str, task_id: str | None = None) -> None:
        super().__init__(message, key)
        self.task_id = task_id


class RunNotSent(RedBeatError):
    """A run that somebody asks for couldn't be sent: by ``trigger``, ``backfill`` or ``rerun`` of a person.

    Attributes:
        name: the entry's.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class BrokerUnavailable(RunNotSent):
    """Its broker can't be reached, or refuses."""


class CallRefused(RunNotSent):
    """Its task can't be called with these arguments and options."""


class MessageNotStored(RedBeatError, OperationalError):
    """A message that was to be sent later isn't stored, as Redis is away or refuses; as a publish that fails.

    If the connection broke just then, it may be stored all the same.
    """


class MessageRefused(RedBeatError, ValueError):
    """A message can't be stored as it is; nothing was.

    Attributes:
        task_id: of its task.
    """

    def __init__(self, message: str, task_id: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id


class CalendarError(RedBeatError, ValueError):
    """A calendar in Redis can't be used, or one can't be stored.

    Attributes:
        name: the calendar's.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class CalendarNotFound(CalendarError, KeyError):
    """There is no calendar of this name."""

    # KeyError would print the message's repr
    __str__ = Exception.__str__


class FileError(RedBeatError, ValueError):
    """A file of entries can't be used; nothing was written.

    Attributes:
        origin: the file's name.
        line: counted from 1, None where it isn't known.
    """

    def __init__(self, message: str, origin: str, line: int | None = None) -> None:
        super().__init__(message)
        self.origin = origin
        self.line = line


class OwnedByOthers(FileError):
    """Entries of the file belong to another owner; nothing was written.

    Attributes:
        owners: the name of each such entry, and its owner in words.
    """

    def __init__(self, message: str, origin: str, owners: dict[str, str] | None = None) -> None:
        super().__init__(message, origin)
        self.owners = owners or {}


class AccessDenied(RedBeatError):
    """A user of the dashboard may not do this; nothing was changed.

    Attributes:
        right: the right that it takes; None: it isn't a matter of rights.
        field: of the entry, that isn't allowed; None: it isn't about one.
    """

    def __init__(self, message: str, right: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.right = right
        self.field = field


class CommandFailed(RedBeatError):
    """The command of a singleton can't be started, or the process that watches over it was killed."""


class LockError(RedBeatError):
    """Something is wrong with the lock.

    Attributes:
        lock_key: the lock's key in Redis.
    """

    def __init__(self, message: str, lock_key: str | None = None) -> None:
        super().__init__(message)
        self.lock_key = lock_key


class LockNotAcquired(LockError, AttributeError):
    """A lock is configured, and this scheduler doesn't hold it; or another backfill of the entry runs."""


class LockLost(LockError, LockNotOwnedError):
    """Another beat holds the lock that this one held.

    Attributes:
        holder: the token of the beat that holds the lock now; None: not known.
    """

    def __init__(self, message: str, lock_key: str | None = None, holder: Any = None) -> None:
        super().__init__(message, lock_key)
        self.holder = holder
