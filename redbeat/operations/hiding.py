"""Arguments that pages and the API don't show, by ``redbeat_web_hide``.

Invariant: what is hidden is hidden at every depth, and comes back unchanged when a form is saved with it. A
positional argument has the name of its parameter, where this process has the task; else it has none.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple
from weakref import WeakSet

from redbeat.config.config import ensure_conf
from redbeat.declared.collection import load_tasks
from redbeat.entries.forms import without_secrets
from redbeat.log.logger import web_logger as logger

_WORD, _DOTTED = re.compile(r"[\w-]+"), re.compile(r"[\w.-]+")
_ESCAPE = re.compile(r"\\+u([0-9a-fA-F]{4})")
_TASK = re.compile(r"""["']task\\*["']\s*:\s*\\*["']([^"'\\]*)""")

#: what stands in place of a hidden value
HIDDEN = "(hidden)"
#: the fields of an entry that hold what a task is given
FIELDS = ("args", "kwargs", "options")
#: what is nested more deeply isn't looked through, and what has more values isn't taken: each is looked at
#: several times
MAX_DEPTH, MAX_VALUES = 100, 100_000
#: a hidden text of fewer characters is replaced in a sentence only where it is a word of its own
MIN_ANYWHERE = 4
#: what stands in place of such a field, as its schema wants it
UNREADABLE: Mapping[str, Any] = {"args": [HIDDEN], "kwargs": {HIDDEN: HIDDEN}, "options": {HIDDEN: HIDDEN}}

_NESTING = (Mapping, list, tuple)
#: values that tell nothing
_NOTHING: Sequence[Any] = (None, "", [], {})
#: how many arguments a worker may put before those of a signature that isn't immutable: none, what the task
#: before it has returned (or the id of a failed one), or a failed one's request, exception and traceback
_PREPENDED = (0, 1, 3)
#: the applications whose modules were imported, or couldn't be: that takes long, and is tried once
_TRIED: WeakSet[Any] = WeakSet()
_LOCK = threading.Lock()


class Parameters(NamedTuple):
    """What positional arguments are called.

    Attributes:
        names: of the first ones, in order.
        rest: of all that follow, which ``*rest`` takes; '': there are none.
    """

    names: tuple[str, ...] = ()
    rest: str = ""

    def name_at(self, place: int) -> str:
        """Return the name of the argument at this place, counted from 0; '': it isn't known."""
        return self.names[place] if place < len(self.names) else self.rest


UNKNOWN = Parameters()


def _nothing_known(_task: str) -> Parameters:
    return UNKNOWN


@dataclass(frozen=True)
class Hiding:
    """What is hidden.

    Attributes:
        patterns: of names; case doesn't count.
        parameters_of: returns what the positional arguments of a task are called.
    """

    patterns: Sequence[str]
    parameters_of: Callable[[str], Parameters] = _nothing_known

    def hides(self, name: str) -> bool:
        """Return True if an argument of this name is hidden."""
        return bool(name) and any(fnmatchcase(name.lower(), pattern.lower()) for pattern in self.patterns)

    def hides_pair(self, value: Any) -> bool:
        """Return True if a list is a name and a hidden value, as some programs write keyword arguments."""
        is_pair = isinstance(value, (list, tuple)) and len(value) == 2
        return is_pair and isinstance(value[0], str) and self.hides(value[0])

    def places_of(self, value: Any) -> Mapping[int, str]:
        """Return which positional arguments of a call are hidden: of a signature, as ``link`` has them.

        They are hidden by each parameter that may be given them, as others may be put before them.
        """
        if not isinstance(value, Mapping):
            return {}
        prepended = (0,) if value.get("immutable") is True else _PREPENDED
        return self.places_in(value.get("args"), value.get("task"), prepended=prepended)

    def places_in(self, args: Any, *tasks: Any, prepended: Sequence[int] = (0,)) -> Mapping[int, str]:
        """Return which of the positional arguments of tasks are hidden, with their names.

        Arguments:
            prepended: how many others may come before them.
        """
        if not isinstance(args, (list, tuple)) or not args or not self.patterns:
            return {}
        found: dict[int, str] = {}
        for parameters in (self.parameters_of(task) for task in tasks if isinstance(task, str) and task):
            for place, before in product(range(len(args)), prepended):
                if self.hides(name := parameters.name_at(place + before)):
                    found.setdefault(place, name)
        return found

    def hides_some(self, task: Any) -> bool:
        """Return True if a task has positional parameters that are hidden."""
        known = self.parameters_of(task) if isinstance(task, str) and task else UNKNOWN
        return any(map(self.hides, (*known.names, known.rest)))


def hiding_of(app: Any) -> Hiding:
    """Return what an app hides."""
    return Hiding(ensure_conf(app).web_hide, cache(partial(parameters_of, app)))


def parameters_of(app: Any, task: str) -> Parameters:
    """Return what the positional arguments of a task are called; ``UNKNOWN``: the app doesn't have it."""
    _load_once(app)
    try:
        known = app.tasks.get(task)
        # a bound task gets itself first, which a bound method's signature doesn't have
        given = () if known is None else inspect.signature(known.run).parameters.values()
    except Exception as exc:  # noqa: BLE001 - the application's own code
        logger.debug("The arguments of %s aren't known: %r", task, exc)
        return UNKNOWN
    names = [one.name for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    rest = next((one.name for one in given if one.kind is one.VAR_POSITIONAL), "")
    return Parameters(tuple(names), rest)


def _load_once(app: Any) -> None:
    with _LOCK:  # who comes second waits, as nothing is hidden before the tasks are there
        if app in _TRIED:
            return
        try:
            load_tasks(app)
        except Exception as exc:  # noqa: BLE001 - the application's own code
            logger.warning("web: tasks can't be imported, so their arguments have no names: %r", exc)
        _TRIED.add(app)


def hide(document: Mapping[str, Any], hiding: Hiding, *tasks: Any) -> dict[str, Any]:
    """Return an entry's document without secrets, and without the arguments whose names match a pattern.

    Arguments:
        tasks: whose arguments they are, besides that of the document.
    """
    shown = without_secrets(document)
    for name, value in shown.items():
        if is_too_deep(value):
            shown[name] = UNREADABLE.get(name, HIDDEN)
        elif name in FIELDS:
            shown[name] = _hide_text(hide_in(value, hiding), hiding)
        elif isinstance(value, _NESTING):  # another one that can't be used, in place of a schedule, say
            shown[name] = hide_in(value, hiding)
    return _hide_places(shown, hiding, *tasks)


def hide_details(details: Mapping[str, Any], hiding: Hiding, *tasks: Any) -> dict[str, Any]:
    """Return what was given for a change without what is hidden; ``tasks`` are those that it is about.

    What is nested too deeply to be looked through is hidden as a whole.
    """
    shown = {
        name: HIDDEN if hiding.hides(name) or is_too_deep(value) else hide_in(value, hiding)
        for name, value in details.items()
    }
    return _hide_places(shown, hiding, *tasks)


def _hide_places(shown: dict[str, Any], hiding: Hiding, *tasks: Any) -> dict[str, Any]:
    args = shown.get("args")
    if isinstance(args, str):  # as some programs write them
        is_hiding = any(map(hiding.hides_some, (shown.get("task"), *tasks)))
        return {**shown, "args": HIDDEN} if is_hiding else shown
    return _without_places(shown, hiding.places_in(args, shown.get("task"), *tasks))


def _without_places(shown: dict[str, Any], places: Mapping[int, str]) -> dict[str, Any]:
    if not places:
        return shown
    return {**shown, "args": [HIDDEN if place in places else one for place, one in enumerate(shown["args"])]}


def is_too_deep(value: Any) -> bool:
    """Return True if a value is nested too deeply to be looked through by what recurses here."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner for one in level for inner in _values_in(one) if isinstance(inner, (Mapping, list, tuple))
        ]
        if not level:
            return False
    return True


def has_too_many(value: Any) -> bool:
    """Return True if there are more values in a value than are looked through."""
    level, count = [value], 0
    while level and count <= MAX_VALUES:
        level = [inner for one in level for inner in _values_in(one)]
        count += len(level)
    return count > MAX_VALUES


def _values_in(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def hide_in(value: Any, hiding: Hiding) -> Any:
    """Return ``value`` with what stands under a matching name hidden, at every depth."""
    if isinstance(value, Mapping):
        shown = {
            name: HIDDEN if hiding.hides(str(name)) else hide_in(one, hiding) for name, one in value.items()
        }
        # under a name that is hidden there are no arguments any more
        return _without_places(shown, hiding.places_of({**value, "args": shown.get("args")}))
    if hiding.hides_pair(value):
        return [value[0], HIDDEN]
    if isinstance(value, (list, tuple)):
        return [hide_in(one, hiding) for one in value]
    return value


def _hide_text(value: Any, hiding: Hiding) -> Any:
    """Return a field that is text, as some programs write it, hidden as a whole if it has to be."""
    return HIDDEN if isinstance(value, str) and may_hide(value, hiding) else value


def may_hide(text: str, hiding: Hiding) -> bool:
    """Return True if a text that isn't read, such as broken JSON, may have something in it that is hidden."""
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    words = {text, *_WORD.findall(text), *_DOTTED.findall(text)}
    if "ping_url" in text or any(map(hiding.hides, words)):
        return True
    return any(map(hiding.hides_some, {*words, *_TASK.findall(text)}))


def restore(given: Mapping[str, Any], stored: Mapping[str, Any], hiding: Hiding) -> dict[str, Any]:
    """Return an entry's document, which was edited, with the stored values where it has those shown."""
    restored = dict(given)
    for name, value in given.items():
        was = stored.get(name)
        is_deep = value == UNREADABLE.get(name, HIDDEN) and is_too_deep(was)
        if is_deep or (name in FIELDS and value == HIDDEN and isinstance(was, str)):
            restored[name] = was
        elif isinstance(value, _NESTING) and not is_too_deep(value):
            restored[name] = _restore_in(value, was, hiding)
    args, were = restored.get("args"), stored.get("args")
    if isinstance(args, (list, tuple)) and isinstance(were, (list, tuple)):
        # with another task it comes back only where that hides it, too: else changing the task would show it
        places = hiding.places_in(args, given.get("task", stored.get("task")))
        known = places.keys() & hiding.places_in(were, stored.get("task")).keys()
        restored = _with_places(restored, stored, known)
    shown = without_secrets(stored)
    for name, value in stored.items():
        if value != shown[name] and restored.get(name) == shown[name]:
            restored[name] = value
    return restored


def kept_hidden(given: Mapping[str, Any], stored: Mapping[str, Any], hiding: Hiding) -> str:
    """Return the name of a hidden argument that an entry's document has as it is stored; '' for none."""
    for field in FIELDS:
        now, was = given.get(field), stored.get(field)
        if is_too_deep(was):
            if now == UNREADABLE[field] or now is was:
                return field
        elif found := _kept_in(now, was, hiding):
            return found
    args: Any = given.get("args")
    was_args: Any = stored.get("args")
    for place, name in hiding.places_in(was_args, stored.get("task")).items():
        is_kept = isinstance(args, (list, tuple)) and was_args[place] in args[place : place + 1]
        if is_kept and was_args[place] not in _NOTHING:
            return name
    return ""


def _kept_in(given: Any, stored: Any, hiding: Hiding) -> str:
    if isinstance(given, Mapping) and isinstance(stored, Mapping):
        for place, name in hiding.places_of(stored).items():
            args = given.get("args")
            was = stored["args"][place]
            if isinstance(args, (list, tuple)) and was in args[place : place + 1] and was not in _NOTHING:
                return name
        for name, one in given.items():
            if name not in stored or one in _NOTHING:
                continue
            if hiding.hides(str(name)):
                if one == stored[name]:
                    return str(name)
            elif found := _kept_in(one, stored[name], hiding):
                return found
    elif hiding.hides_pair(stored):
        is_kept = isinstance(given, (list, tuple)) and [*given] == [*stored] and stored[1] not in _NOTHING
        return str(stored[0]) if is_kept else ""
    elif isinstance(given, (list, tuple)) and isinstance(stored, (list, tuple)):
        kept = (_kept_in(now, was, hiding) for now, was in zip(given, stored, strict=False))
        return next(filter(None, kept), "")
    return ""


def without_hidden(sentence: str, document: Any, hiding: Hiding) -> str:
    """Return a sentence about a document, which may quote it, without the values that are hidden in it."""
    if is_too_deep(document):
        return "It can't be used as it is."
    texts = {*_texts_hidden(document, hiding)}
    if isinstance(document, Mapping):
        if document.get("ping_url"):
            texts.add(str(document["ping_url"]))
        args: Any = document.get("args")
        for place in hiding.places_in(args, document.get("task")):
            texts |= {*_texts_hidden(args[place], hiding, is_under=True)}
    for text in sorted(texts, key=len, reverse=True):
        if len(text) < MIN_ANYWHERE:  # a part of a time or of another number is no value
            sentence = re.sub(rf"(?<![\w:.-]){re.escape(text)}(?![\w:-]|\.\w)", HIDDEN, sentence)
        else:
            sentence = sentence.replace(text, HIDDEN)
    return sentence


def _texts_hidden(value: Any, hiding: Hiding, *, is_under: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for place in hiding.places_of(value):
            yield from _texts_hidden(value["args"][place], hiding, is_under=True)
        for name, one in value.items():
            yield from _texts_hidden(one, hiding, is_under=is_under or hiding.hides(str(name)))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts_hidden(one, hiding, is_under=is_under or hiding.hides_pair(value))
    elif is_under and value not in (None, "", True, False):
        yield str(value)
        if isinstance(value, str):  # as sentences quote it
            yield repr(value)[1:-1]


def left_hidden(
    document: Mapping[str, Any], hiding: Hiding, stored: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the arguments that are hidden in an entry's document which is to be stored: field and name.

    Arguments:
        stored: the document that it was made from; a mark that stands at another place now hides nothing.
    """
    for name, value in document.items():
        if name in FIELDS and value in (HIDDEN, UNREADABLE[name]):
            yield name, name
        elif not is_too_deep(value):
            yield from ((name, one) for one in hidden_in(value, hiding))
    before = stored or {}
    args, tasks = document.get("args"), (document.get("task"), before.get("task"))
    places = hiding.places_in(args, *tasks)
    were = hiding.places_in(before.get("args"), before.get("task"))
    if (places or were) and isinstance(args, (list, tuple)) and args != UNREADABLE["args"]:
        for place, one in enumerate(args):
            if one == HIDDEN and (were or place in places):
                yield "args", places.get(place, f"argument {place + 1}")


def _with_places(restored: dict[str, Any], was: Mapping[str, Any], known: Set[int]) -> dict[str, Any]:
    """Return a call with the stored arguments in the places where it has their marks."""
    if not known:
        return restored
    args = [
        was["args"][place] if one == HIDDEN and place in known else one
        for place, one in enumerate(restored["args"])
    ]
    return {**restored, "args": args}


def hidden_in(value: Any, hiding: Hiding) -> Iterator[str]:
    """Yield the names of the arguments in ``value`` in whose places a mark stands, at every depth."""
    if isinstance(value, Mapping):
        # a mark in a call that was made immutable since it was shown stands for what was hidden before
        places = hiding.places_of({**value, "immutable": False})
        yield from (name for place, name in places.items() if value["args"][place] == HIDDEN)
        for name, one in value.items():
            if one == HIDDEN and hiding.hides(str(name)):
                yield str(name)
            else:
                yield from hidden_in(one, hiding)
    elif hiding.hides_pair(value) and value[1] == HIDDEN:
        yield value[0]
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from hidden_in(one, hiding)


def _restore_in(given: Any, stored: Any, hiding: Hiding) -> Any:
    if isinstance(given, Mapping):
        was = stored if isinstance(stored, Mapping) else {}
        if "task" in was and given.get("task") != was["task"]:
            was = {}  # a call of another task, which might show what it is given
        restored = {
            name: was[name]
            if one == HIDDEN and name in was and hiding.hides(str(name))
            else _restore_in(one, was.get(name), hiding)
            for name, one in given.items()
        }
        return _with_places(restored, was, hiding.places_of(given).keys() & hiding.places_of(was).keys())
    if isinstance(given, (list, tuple)):
        was_list = list(stored) if isinstance(stored, (list, tuple)) else []
        if hiding.hides_pair(given) and given[1] == HIDDEN:
            return was_list if len(was_list) == 2 and was_list[0] == given[0] else given
        return [
            _restore_in(one, was_list[at] if at < len(was_list) else None, hiding)
            for at, one in enumerate(given)
        ]
    return given
