"""Going on when Redis can't be reached: which errors are temporary, and a client that tries again."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    stop_never,
    wait_exponential,
)

from redbeat.errors import StoreUnavailable
from redbeat.log.events import REDIS_AWAY, REDIS_BACK
from redbeat.log.logger import logger

#: the base of all errors of the redis client
ClientError = redis.exceptions.RedisError
#: what it raises when the server is away, or refuses the login
CONNECTION_ERRORS = redis.exceptions.ConnectionError, redis.exceptions.TimeoutError

#: how long each step waits for Redis when a beat ends
LAST_WORDS_SECONDS = 2.0

#: a request that ends its connection this many times in a row is at fault itself; two may be the network's
#: fault, or that of a server that restarts
BREAKS_OF_THE_REQUEST = 3
#: how long to wait before the last of these tries
HICCUP_SECONDS = 0.1

#: temporary refusals: the server is loading, busy with a script, full, short of replicas, or no master at the
#: moment. The redis client removes the code from the text where it has a class for it
_PASSING_CODES = (
    "OOM ",
    "NOREPLICAS ",
    "MISCONF ",
    "MASTERDOWN ",
    "TRYAGAIN ",
    "CLUSTERDOWN ",
    "BUSY ",
    "READONLY ",
)
#: what a script is told while a slot moves to another node: an entry has moved already, the schedule hasn't
_HALF_MOVED = "attempted to access a non local key"
#: what a server answers to a request that is too large for it, before it ends the connection
PROTOCOL_ERROR = "Protocol error"
_PASSING_ERRORS = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.ClusterError,
    redis.exceptions.RedisClusterException,
    redis.exceptions.AskError,  # and MovedError: the slot is at another node
    redis.exceptions.TryAgainError,
)
#: how a server says that its user has no right to something
_NO_PERMISSION = re.compile(r"NOPERM|no permissions?|can't (run|access)", re.IGNORECASE)
#: how a server says that it wants a password and got none; the second text is the beginning of a longer one
_PASSWORD_WANTED = ("Authentication required", "HELLO must be called with the client already authenticated")


@dataclass
class Counts:
    """How often this process has had trouble with Redis.

    Attributes:
        errors: commands that have failed, as Redis was away or has refused them.
        retries: commands that were sent again.
        retried_at: when the last of them was, monotonic.
    """

    errors: int = 0
    retries: int = 0
    retried_at: float = -math.inf


#: since the process began; only counts
COUNTS = Counts()


def is_transient(exc: BaseException) -> bool:
    """Return True if a retry may help: Redis is unreachable, loading, full, failing over, or moving slots."""
    exc = said_by_server(exc)
    if isinstance(exc, redis.exceptions.AuthenticationError) or is_no_cluster(exc):
        return False
    if isinstance(exc, redis.exceptions.ResponseError):
        code = str(exc)
        if code.startswith("Error running script"):  # before Redis 7 the code stands at the end
            code = code.rpartition(": -")[2]
        if code.startswith(_PASSING_CODES) or _HALF_MOVED in code.lower():
            return True
    if type(exc).__name__ == "OutOfMemoryError":  # not in every version of the redis client
        return True
    return isinstance(exc, _PASSING_ERRORS)


def is_full(exc: BaseException | None) -> bool:
    """Return True if a server refuses all writes: memory or disk are full, or replicas are missing."""
    if exc is None:
        return False
    said = str(exc).rpartition(": -")[2]  # in a script, before Redis 7, the code stands at the end
    return type(exc).__name__ == "OutOfMemoryError" or said.startswith(("OOM ", "MISCONF ", "NOREPLICAS "))


def said_by_server(exc: BaseException) -> BaseException:
    """Return a node's answer where a cluster's client says only that no node can be used; else ``exc``."""
    cause: BaseException | None = exc
    while isinstance(cause, redis.exceptions.RedisClusterException):
        cause = cause.__cause__ or cause.__context__
        if isinstance(cause, (redis.exceptions.ResponseError, redis.exceptions.AuthenticationError)):
            return cause
    return exc


def is_no_cluster(exc: BaseException) -> bool:
    """Return True if a server has answered that it is not a node of a cluster."""
    return any(words in str(exc) for words in ("cluster support disabled", "Cluster mode is not enabled"))


def is_no_permission(said: BaseException | str | None) -> bool:
    """Return True if the server has refused a command or a key that its user has no right to."""
    return isinstance(said, redis.exceptions.NoPermissionError) or bool(_NO_PERMISSION.search(str(said)))


def is_password_missing(exc: BaseException) -> bool:
    """Return True if a server wants a password and was given none."""
    return any(words in str(exc) for words in _PASSWORD_WANTED)


def is_refusal(exc: BaseException | None) -> bool:
    """Return True if a server has answered that it takes no commands at the moment, from any client."""
    return isinstance(exc, redis.exceptions.ResponseError) and is_transient(exc)


class RequestBroken(redis.exceptions.ResponseError):
    """A request that ends its connection each time it is sent, while the server answers others."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(
            "the connection ends each time this is sent, while other commands are answered: it may be larger "
            f"than the server's proto-max-bulk-len, or than a proxy lets through ({cause})"
        )


def is_reset(exc: BaseException) -> bool:
    """Return True if the connection was ended: ``exc`` is neither a server's answer nor a timeout.

    Nor is it what a cluster's client says when it was sent from node to node too often, as a slot moves.
    """
    answers = (
        redis.exceptions.ResponseError,
        redis.exceptions.TimeoutError,
        redis.exceptions.ClusterError,
    )
    return is_transient(exc) and not isinstance(said_by_server(exc), answers)


def is_period_left(retry_period: float | None, well_at: float | None) -> bool:
    """Return True if a server is to be waited for that refuses now what it accepted at ``well_at``.

    Arguments:
        well_at: a monotonic time; None: it has never accepted it, so the settings are wrong.
    """
    if retry_period is None or well_at is None:
        return False
    return retry_period < 0 or time.monotonic() < well_at + retry_period


def call_retrying(retry_period: float, call: Callable[[], Any], max_wait_seconds: float = 0.5) -> Any:
    """Return ``call()``, tried again for ``retry_period`` seconds (-1: for ever) while Redis is away."""
    retrying = Retrying(
        stop=stop_never if retry_period < 0 else stop_after_delay(retry_period),
        wait=wait_exponential(multiplier=0.1, max=max_wait_seconds),
        retry=retry_if_exception(is_transient),
        sleep=time.sleep,
        before_sleep=_log_retry,
        reraise=True,
    )
    began_at = time.monotonic()

    def note_back() -> None:
        if retrying.statistics.get("attempt_number", 1) > 1:
            seconds = time.monotonic() - began_at
            logger.warning(
                "beat: Redis is back after %.1f s.", seconds, extra=REDIS_BACK.of(seconds=round(seconds, 3))
            )

    try:
        answer = retrying(call)
    except redis.exceptions.ResponseError as exc:
        if not is_transient(exc):  # Redis has answered: it doesn't know a script any more, say
            note_back()
        raise
    note_back()
    return answer


def _log_retry(retry_state: RetryCallState) -> None:
    COUNTS.errors, COUNTS.retries = COUNTS.errors + 1, COUNTS.retries + 1
    COUNTS.retried_at = time.monotonic()
    pause = retry_state.next_action.sleep if retry_state.next_action else 0
    cause = retry_state.outcome.exception() if retry_state.outcome else None
    # once per outage: a server that is away for an hour must not fill the disk
    is_first = retry_state.attempt_number == 1
    log, event = (logger.warning, REDIS_AWAY.of(reason=str(cause))) if is_first else (logger.debug, None)
    log("beat: Retrying Redis connection in %s seconds... (%s)", pause, cause, extra=event)


class RetryingConnection:
    """A proxy of a client that retries while Redis is unreachable.

    It does so with every command, script and pipeline: a pipeline records its commands, and sends all of them
    again at each try.

    With a ``probe`` it recognises requests that end their connection. One that is larger than the server's
    ``proto-max-bulk-len``, or than a proxy lets through, isn't refused: its connection ends, as if the server
    were away. If that happens three times, and the probe is answered after each, RequestBroken is raised.

    Arguments:
        retry_period: seconds to go on trying; -1: for ever; None: nothing is retried.
        wrapped_connection: a redis client.
        probe: sends a small command by the client that it is given.
    """

    #: longest wait between two tries, seconds
    RETRY_MAX_WAIT = 0.5
    _log_retry_attempt = staticmethod(_log_retry)  # its name in 2.x

    def __init__(
        self,
        retry_period: float | None,
        wrapped_connection: Any,
        probe: Callable[[Any], Any] | None = None,
    ) -> None:
        self.retry_period = retry_period
        self.wrapped_connection = wrapped_connection
        self._probe = probe

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.wrapped_connection, name)
        if not callable(value):
            return value

        def retrying(*args: Any, **kwargs: Any) -> Any:
            return self._retry(lambda: value(*args, **kwargs))

        return retrying

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """Return a pipeline whose ``execute`` is retried as a whole."""
        return _RecordedPipeline(self._retry, lambda: self.wrapped_connection.pipeline(*args, **kwargs))

    def register_script(self, script: str | bytes) -> Any:
        """Return a script whose calls are retried."""
        return type(self.wrapped_connection).register_script(self, script)

    def lock(self, *args: Any, **kwargs: Any) -> Any:
        """Return a lock of the redis client's whose calls are retried."""
        return type(self.wrapped_connection).lock(self, *args, **kwargs)

    def _retry(self, call: Callable[[], Any]) -> Any:
        if self._probe is not None:
            probe = partial(is_answered, partial(self._probe, self.wrapped_connection))
            call = partial(call_watched, call, probe, is_timeout_broken=True)
        if self.retry_period is None:
            return call()
        return call_retrying(self.retry_period, call, self.RETRY_MAX_WAIT)


def call_watched(
    call: Callable[[], Any],
    answers: Callable[[], bool],
    *,
    is_timeout_broken: bool = False,
) -> Any:
    """Return ``call()``, which sends a request; tried again if it ends its connection.

    Arguments:
        answers: returns True if the server answers another command then.
        is_timeout_broken: a request without an answer counts as one that ends its connection.

    Raises:
        RequestBroken: it has ended three connections in a row, while the server answered others.
    """
    breaks = 0
    while True:
        try:
            return call()
        except (redis.exceptions.RedisError, OSError) as exc:
            if PROTOCOL_ERROR in str(exc):  # the server has said so itself
                raise RequestBroken(exc) from exc
            is_broken = is_reset(exc) or (
                is_timeout_broken and isinstance(exc, redis.exceptions.TimeoutError)
            )
            breaks = breaks + 1 if is_broken and answers() else 0
            if not breaks:
                raise
            if breaks == BREAKS_OF_THE_REQUEST:
                raise RequestBroken(exc) from exc
            if breaks > 1:
                time.sleep(HICCUP_SECONDS)


def is_answered(probe: Callable[[], Any]) -> bool:
    """Return True if a server answers what ``probe`` sends."""
    try:
        probe()
    except (redis.exceptions.RedisError, OSError) as exc:
        return not is_transient(exc)
    return True


def without_retry(client: Any) -> Any:
    """Return the client inside a RetryingConnection, or ``client`` itself; for what must end soon."""
    return getattr(client, "wrapped_connection", client)


def send_once(client: Any) -> None:
    """Switch off the retries of ``client``, whatever its options say: it sends each command once."""
    client.connection_pool.set_retry(Retry(NoBackoff(), 0))


def call_briefly(call: Callable[[], Any], seconds: float = LAST_WORDS_SECONDS) -> Any:
    """Return ``call()``, and wait ``seconds`` for it at most, however long the client itself would wait.

    Raises what the call raises, and StoreUnavailable when it hasn't ended in time; it goes on in a thread
    then.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as exc:  # noqa: BLE001 - it is raised where it is waited for
            outcome.set_exception(exc)

    try:
        threading.Thread(target=run, name="redbeat-last-words", daemon=True).start()
    except RuntimeError:  # no more threads can be started: wait as long as the client does
        return call()
    try:
        return outcome.result(seconds)
    except FutureTimeoutError:
        raise StoreUnavailable(f"Redis hasn't answered within {seconds:g} s.") from None


class _RecordedPipeline:
    """Records commands, and replays them into a new pipeline at each try.

    Arguments:
        retry: returns the reply of what it calls, once or more often.
        make: returns a pipeline.
    """

    def __init__(self, retry: Callable[[Callable[[], Any]], Any], make: Callable[[], Any]) -> None:
        self._retry, self._make = retry, make
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __enter__(self) -> _RecordedPipeline:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._calls.clear()

    def __len__(self) -> int:
        return len(self._calls)

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name in ("watch", "multi", "unwatch", "immediate_execute_command"):
            raise AttributeError(f"this pipeline has no {name}; use the client's transaction().")

        def record(*args: Any, **kwargs: Any) -> _RecordedPipeline:
            self._calls.append((name, args, kwargs))
            return self

        return record

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the recorded commands, all of them at each try; return their replies."""
        calls, self._calls = self._calls, []

        def replay() -> Any:
            pipeline = self._make()
            for name, args, kwargs in calls:
                getattr(pipeline, name)(*args, **kwargs)
            return pipeline.execute(raise_on_error=raise_on_error)

        return self._retry(replay)  # type: ignore[no-any-return]
