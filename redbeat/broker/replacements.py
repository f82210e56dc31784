"""What has been replaced since it was remembered: functions of classes, and what modules call by name.

Tools such as Datadog's replace functions on other people's classes. Invariant: what can't be recognised as
its package's own, also because it was replaced before this module saw it, counts as replaced; but for
wrappers around an original that are known (``wrappers``). A function is known by its globals and its code,
since a wrapper copies everything else.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from redbeat.broker.wrappers import is_known_wrapper

#: packages whose functions are called by name on the way of a message; gevent and eventlet replace some of
#: the standard library's, and no message looks different for that
_ROOTS = (sys.stdlib_module_names - {"unittest"}) | {
    "amqp",
    "billiard",
    "builtins",
    "celery",
    "dateutil",
    "eventlet",
    "gevent",
    "greenlet",
    "kombu",
    "redbeat",
    "redis",
    "vine",
}
#: packages whose functions are followed into what they call by name, and a module that replaces its own
_FOLLOWED, _NOT_FOLLOWED = ("celery", "kombu"), "celery._state"

_code_of = attrgetter("__code__")
_defaults_of = attrgetter("__defaults__")

#: equal to nothing: stands for an original that wasn't there any more
_GONE = object()


class Namespace:
    """Names of a class or a module, and what they stood for when they were remembered.

    Arguments:
        label: what stands before a name in a reason.
        mapping: the names' present values.
        roots: the packages that may have brought them.

    Attributes:
        look: returns the present values, in the order of ``originals``; raises KeyError if one is gone.
    """

    def __init__(self, label: str, mapping: Mapping[Any, Any], names: Iterable[Any], roots: Iterable[str]):
        self.label = label
        self.names = tuple(sorted(set(names), key=str))
        self._mapping = mapping
        self._values = tuple(mapping[name] if is_own(mapping[name], roots) else _GONE for name in self.names)
        # of a single name itemgetter returns no tuple
        self.look = functools.partial(itemgetter(*self.names, self.names[0]), mapping)
        self.originals = (*self._values, self._values[0])

    @property
    def functions(self) -> Iterator[FunctionType]:
        """The remembered functions written in Python, also those inside of properties and the like."""
        for value in self._values:
            function = _unwrap(value)
            if type(function) is FunctionType:
                yield function

    def replaced(self) -> Iterator[str]:
        """Yield which names stand for something else now, and who has brought it."""
        for name, original in zip(self.names, self._values, strict=True):
            if name not in self._mapping:
                yield f"{self.label}{_shown(name)} is gone"
            elif self._mapping[name] is not original and not is_known_wrapper(self._mapping[name], original):
                yield f"{source_of(self._mapping[name])} replaces {self.label}{_shown(name)}"


class Family:
    """A class and its bases, with those of their names that take part in making a message.

    Arguments:
        cls: objects of its subclasses are judged by it, too.
        names: those that this version of the class hasn't got are left out.

    Attributes:
        classes: the class and its bases.
        namespaces: of each class the names that it has itself.
    """

    def __init__(self, cls: type, *names: str) -> None:
        self.classes = cls.__mro__
        self._names = frozenset({*names, "__getattribute__"})
        #: names that each class hasn't got itself
        self._absent: dict[type, frozenset[str]] = {}
        self.namespaces: list[Namespace] = []
        cached = set()
        for base in cls.__mro__:
            if base.__module__ == "builtins":
                self._absent[base] = frozenset()  # it can't be changed
                continue
            present = self._names & vars(base).keys()
            cached |= {name for name in present if _is_cached(vars(base)[name])}
            self._absent[base] = self._names - present
            if present:
                roots = (_root(base.__module__),)
                self.namespaces.append(Namespace(f"{base.__name__}.", vars(base), present, roots))
        self._looks = [(vars(base).keys(), absent) for base, absent in self._absent.items() if absent]
        #: names that an object has itself only if somebody has put them there
        self._of_class = self._names - cached

    def find_foreign(self, subject: Any, ignored: frozenset[str] = frozenset()) -> str:
        """Return which of the names ``subject`` has from elsewhere than the family's classes, '' if none.

        Whether these classes themselves have been changed is told by a ``Watch``. ``ignored``: names that
        the object may have itself.
        """
        found = self.find_override(type(subject))
        if found:
            return found
        attributes = getattr(subject, "__dict__", None)
        if not attributes or attributes.keys().isdisjoint(self._of_class):
            return ""
        for name in sorted(self._of_class & attributes.keys() - ignored):
            return f"{source_of(attributes[name])} replaces {name} of one {type(subject).__name__}"
        return ""

    def find_override(self, cls: type) -> str:
        """Return which class besides the family's overrides one of the names for ``cls``, '' if none does."""
        for base in cls.__mro__:
            if base not in self._absent and not base.__dict__.keys().isdisjoint(self._names):
                name = min(self._names & base.__dict__.keys())
                return f"{base.__module__}.{base.__qualname__} overrides {name}"
        return ""

    def added(self) -> Iterator[str]:
        """Yield which of its classes have got names that they only inherited when it was remembered."""
        if all(names.isdisjoint(absent) for names, absent in self._looks):
            return
        for base, absent in self._absent.items():
            for name in sorted(absent & base.__dict__.keys()):
                yield f"{source_of(base.__dict__[name])} replaces {base.__name__}.{name}"


class Watch:
    """The names of some classes, what their functions call by name, and what these call in turn.

    Functions are followed as far as they are Celery's and kombu's. Looking at all of them takes 30 us.

    Arguments:
        families: the classes.
        tables: other names that are watched.
    """

    def __init__(self, *families: Family, tables: Iterable[Namespace] = ()) -> None:
        self._families = families
        self._namespaces = [*tables, *(one for family in families for one in family.namespaces)]
        self._functions: list[FunctionType] = []
        modules: dict[int, dict[str, Any]] = {}
        names: dict[int, set[str]] = {}
        left = [function for namespace in self._namespaces for function in namespace.functions]
        seen = set[int]()
        while left:
            function = left.pop()
            if id(function) in seen:
                continue
            seen.add(id(function))
            self._functions.append(function)
            table = function.__globals__
            called = {name for name in _names_in(function.__code__) if _is_code(table.get(name))}
            modules[id(table)] = table
            names.setdefault(id(table), set()).update(called)
            for name in called:
                value = _unwrap(table[name])
                if type(value) is FunctionType and _is_followed(_module_of(value)):
                    left.append(value)
        for key, table in modules.items():
            if names[key]:
                self._namespaces.append(Namespace(f"{table['__name__']}.", table, names[key], _ROOTS))
        self._looks = [namespace.look for namespace in self._namespaces]
        self._originals = list(chain.from_iterable(namespace.originals for namespace in self._namespaces))
        self._codes = [function.__code__ for function in self._functions]
        self._with_defaults = [function for function in self._functions if function.__defaults__]
        self._defaults = [function.__defaults__ for function in self._with_defaults]

    def replaced(self) -> Iterator[str]:
        """Yield what has been replaced, or given another code, and by whom."""
        if not self._is_whole():
            changed = list(self._changed())
            if not changed:  # but for known wrappers: looked at so, asking is quick again
                self._originals = list(chain.from_iterable([look() for look in self._looks]))
            yield from changed
        for family in self._families:
            yield from family.added()

    def _is_whole(self) -> bool:
        try:
            values = chain.from_iterable([look() for look in self._looks])
        except KeyError:
            return False
        return (
            all(map(is_, values, self._originals))
            and all(map(is_, map(_code_of, self._functions), self._codes))
            and all(map(is_, map(_defaults_of, self._with_defaults), self._defaults))
        )

    def _changed(self) -> Iterator[str]:
        for namespace in self._namespaces:
            yield from namespace.replaced()
        changed = [
            *zip(self._functions, map(_code_of, self._functions), self._codes, strict=True),
            *zip(self._with_defaults, map(_defaults_of, self._with_defaults), self._defaults, strict=True),
        ]
        for function, present, original in changed:
            if present is not original:
                yield f"{source_of(function)} has changed {_module_of(function)}.{function.__qualname__}"


def is_own(value: Any, roots: Iterable[str]) -> bool:
    """Tell whether ``value`` has been made by one of the packages ``roots``, as far as that can be told."""
    value = _unwrap(value)
    kind = type(value)
    if kind is FunctionType:
        return _root(_module_of(value)) in roots and next(_objects_in(value.__code__), None) is None
    if kind is MethodType:
        return is_own(value.__func__, roots) and _root(type(value.__self__).__module__) in roots
    if kind is ModuleType:
        return _root(value.__name__) in roots
    if kind is tuple:
        return all(is_own(part, roots) for part in value)
    if kind in (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType):
        return True
    if kind.__module__ == "builtins" and not isinstance(value, type):
        return True  # a constant
    return _root((value if isinstance(value, type) else kind).__module__) in roots


def source_of(value: Any) -> str:
    """Return who has brought ``value``: its package if it is an installed one, else its module."""
    value = _unwrap(value)
    kind = type(value)
    if kind is MethodType:
        return source_of(value.__func__)
    if kind is functools.partial:
        return source_of(value.func)
    if kind is FunctionType:
        inner = next(_objects_in(value.__code__), None)  # the code was put around another function's
        return source_of(inner) if inner is not None else _place(_module_of(value))
    if kind is tuple:
        return next((source_of(part) for part in value if callable(part)), "something")
    wrapper = _wrapper_of(value)
    if wrapper is not None:
        return source_of(wrapper)
    module = kind.__module__ if isinstance(kind.__module__, str) else ""
    if module in ("", "builtins"):
        module = getattr(value, "__module__", None) or "something"
    return _place(str(module))


def describe(function: Any) -> str:
    """Return the module and the name of a function or another callable."""
    if type(function) is functools.partial:
        return describe(function.func)
    if type(function) is MethodType:
        cls = function.__self__ if isinstance(function.__self__, type) else type(function.__self__)
        return f"{cls.__module__}.{cls.__qualname__}.{function.__func__.__name__}"
    if type(function) is FunctionType:
        return f"{_module_of(function)}.{function.__qualname__}"
    if isinstance(function, type):
        return f"{function.__module__}.{function.__qualname__}"
    return f"{type(function).__module__}.{type(function).__qualname__}"


def root_of(function: Any) -> str:
    """Return the package that a function or another callable belongs to."""
    if type(function) is functools.partial:
        return root_of(function.func)
    if type(function) is MethodType:
        return root_of(function.__func__)
    return _root(_module_of(function) if type(function) is FunctionType else type(function).__module__)


def _unwrap(value: Any) -> Any:
    """Return the function inside of what a class may have for one."""
    for _ in range(5):
        kind = type(value)
        if kind in (staticmethod, classmethod):
            value = value.__func__
        elif kind is property and value.fget is not None:
            value = value.fget
        elif _is_cached(value) and vars(value).get("func") is not None:
            value = vars(value)["func"]
        elif kind is FunctionType and _module_of(value) == "contextlib":  # what @contextmanager makes
            cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
            value = cells["func"].cell_contents if "func" in cells else value
    return value


def _is_cached(value: Any) -> bool:
    return issubclass(
        type(value), functools.cached_property
    )  # of a proxy isinstance() tells what it stands for


def _wrapper_of(value: Any) -> Any:
    """Return the function that a wrapper made by wrapt calls instead of the original."""
    is_wrapt = type(value).__name__ in ("FunctionWrapper", "BoundFunctionWrapper")
    return getattr(value, "_self_wrapper", None) if is_wrapt else None


def _is_code(value: Any) -> bool:
    """Tell whether a module's ``value`` is something that runs; others may change."""
    return type(value) is ModuleType or callable(value)


def _is_followed(module: str) -> bool:
    return _root(module) in _FOLLOWED and module != _NOT_FOLLOWED


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _objects_in(code: CodeType) -> Iterator[Any]:
    """Yield constants that no compiler puts there, but a tool that rewrites code does."""
    for constant in code.co_consts:
        if type(constant) in (FunctionType, MethodType, BuiltinFunctionType) or callable(constant):
            yield constant


def _module_of(function: FunctionType) -> str:
    return str(function.__globals__.get("__name__"))


def _root(module: Any) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


def _place(module: str) -> str:
    """Return an installed module's package, or else the module."""
    root = _root(module)
    path = str(getattr(sys.modules.get(root), "__file__", None) or "")
    return root if "site-packages" in path or "dist-packages" in path else module


def _shown(name: Any) -> str:
    return name if isinstance(name, str) else getattr(name, "__name__", str(name))
