"""All keys about an entry come from one function of its name; nothing else in the package makes one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import redbeat
from redbeat import keys
from redbeat.keys import OF_A_PART, EntryKeys, Keys
from redbeat.store.scripts.moving import hide_request
from tests.support.lua_headers import FOLDER, FRAGMENTS, SCRIPTS, code_of

PACKAGE = Path(redbeat.__file__).parent
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
#: what the names of RedBeat's own keys consist of, besides the prefix
OWN = re.compile("|".join(sorted({*keys.RESERVED_NAMES, *keys.RESERVED_BEGINNINGS, ":singleton:"})))
#: what a key could be made of
PARTS = {"prefix", "key_prefix", *(name for name in dir(keys) if name.endswith(("_NAMES", "_BEGINNINGS")))}

#: module to what it does with the prefix all the same, and why
EXCEPTIONS = {
    "beat/misplaced.py": {"prefix"},  # tells shards by it
    "beat/shards.py": {"prefix"},  # and so does this
    "cli/session.py": {"prefix"},  # tells parts by it
    "cli/singleton.py": {"key_prefix"},  # hands the setting on
    "connection/client.py": {"key_prefix"},  # names the hash tag that it lacks
    "config/config.py": {"key_prefix", "prefix", "RESERVED_NAMES"},  # gives it to Keys; Celery's namespace
    "declared/declaration.py": {"RESERVED_NAMES"},  # refuses such names
    "diagnostics/checks/context.py": {"prefix"},  # looks at every key that begins so
    "diagnostics/checks/orphans.py": {"prefix"},  # and tells other schedules' from them
    "diagnostics/checks/shards.py": {"prefix"},  # tells parts by it
    "diagnostics/checks/upgrade.py": {"key_prefix"},  # names it in a sentence
    "diagnostics/fixes.py": {"prefix"},  # tells parts by it
    "layout.py": {"prefix", "MESSAGE_NAMES"},  # tells shards by it
    "leadership/shares.py": {"prefix"},  # tells parts by it
    "schedulers.py": {"prefix"},  # names parts by it
    "store/parts.py": {"prefix"},  # tells parts by it
    "store/scripts/downgrades.py": {"prefix"},  # for bring_back
    "store/layouts.py": {"prefix"},  # tells parts by it
    "store/missing_rights.py": {"prefix"},  # names rights to keys that begin so
    "store/orphans.py": {"prefix"},  # tells parts by it
    "store/recovery.py": {"prefix"},  # tells parts by it
    "store/runs.py": {"prefix"},  # tells parts by it
    "store/server.py": {"prefix"},  # looks at every key that begins so
    "store/store.py": {"prefix"},  # for claim_due
    "store/upcoming.py": {"prefix"},  # for read_upcoming
    "testing/apps.py": {"prefix"},  # Celery's namespace
    "web/application.py": {"key_prefix"},  # tells the cookies of two dashboards apart
}
#: and the modules that have text like a part of a key: what other schedules' keys end with; help; a right
TEXTS = {"diagnostics/checks/orphans.py", "config/settings.py", "store/rights.py", "web/verbs/later.py"}

#: script to what it does with the prefix: members that are bare names become keys in the step that finds them
IN_SCRIPTS = {"claim_due": {"prefix .. due", "prefix .. key"}, "bring_back": set(), "read_upcoming": set()}


def makings(source: str) -> Iterator[str]:
    """What a module could make keys of: names of the prefix and of beginnings that it uses."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield from {node.attr} & PARTS
        elif isinstance(node, ast.ImportFrom) and node.module == "redbeat.keys":
            yield from {alias.name for alias in node.names} & PARTS


def texts(source: str) -> Iterator[str]:
    """The texts of a module that look like a part of a key; docstrings aren't among them."""
    tree = ast.parse(source)
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield from OWN.findall(node.value)


def test_no_other_module_makes_a_key() -> None:
    sources = {name: path.read_text("utf-8") for name, path in MODULES.items() if name != "keys.py"}
    made = {name: found for name, source in sources.items() if (found := set(makings(source)))}
    assert made == EXCEPTIONS, "redbeat.keys.Keys should do that"
    assert {name for name, source in sources.items() if set(texts(source))} == set(TEXTS)


@pytest.mark.parametrize(
    "source",
    ["f'{keys.prefix}{name}'", "self.config.key_prefix + name", "from redbeat.keys import HISTORY_NAMES"],
)
def test_it_is_noticed_when_a_module_begins_to(source: str) -> None:
    assert list(makings(source))


def test_it_is_noticed_when_a_module_spells_a_key() -> None:
    assert list(texts("key = 'redbeat::history:' + name"))


@pytest.mark.parametrize("script", [*SCRIPTS, *FRAGMENTS])
def test_a_script_makes_no_key_but_that_of_a_bare_name(script: str) -> None:
    code = code_of(script)
    assert set(re.findall(r"prefix \.\. \w+", code)) == IN_SCRIPTS.get(script, set())
    assert ("prefix" in code) == (script in IN_SCRIPTS)
    assert not OWN.search((FOLDER / f"{script}.lua").read_text("utf-8").partition("\nlocal ")[2])


@pytest.mark.parametrize("name", ["report", "", ":x", "redbeat:twice", "a b\tü", "{tag}", "*?[]\\"])
def test_the_key_that_a_script_makes_of_a_bare_name_is_the_entry_s(name: str) -> None:
    named = Keys("some-prefix:")
    assert named.about(name).entry == f"{named.prefix}{name}"
    assert named.name(named.about(name).entry) == name
    assert named.entry_of(named.about(name).entry) == named.about(name).entry


def test_the_keys_of_two_entries_have_nothing_in_common() -> None:
    named = Keys()
    names = ("report", "reports", "report:", ":history", "history:report", "")
    found = [key for name in names for key in named.about(name)]
    assert len(set(found)) == len(found) == len(names) * len(EntryKeys._fields)


def test_what_is_beside_an_entry_begins_as_its_key_does() -> None:
    named = Keys()
    assert [*named.beside_types] == [key.removesuffix("report") for key in named.about("report").beside]


# -- what becomes of each kind of key when the schedule is divided otherwise

#: what a part keeps for each of its entries in one key of its own, which goes with the entry
OF_ENTRIES = {
    *("schedule", "later", "statics", "static_owners", "downgraded"),
    *("deadlines", "expected", "streaks"),
}
#: what is a beat's or a mover's, and is needed in no other part
OF_BEATS = {
    *("lock", "tick", "wake", "released", "standbys", "teller"),
    *("mover", "moving", "left", "arrived", "arriving"),
}
#: what isn't in parts, besides what says which layout this is
SHARED = {"layout", "beats", "audit", "unrun", "tokens", "pinged"}


def own_keys() -> set[str]:
    """The names of all keys that a part, or the schedule, has once."""
    made_by = type(vars(Keys)["lock"])
    return {"schedule", "statics"} | {name for name, one in vars(Keys).items() if isinstance(one, made_by)}


def test_of_each_key_it_is_known_what_becomes_of_it_in_a_reshard() -> None:
    known = [OF_ENTRIES, OF_BEATS, SHARED, {"generation"}, set(OF_A_PART)]
    assert sorted(own_keys()) == sorted(name for names in known for name in names)


def test_what_is_known_is_what_a_reshard_does() -> None:
    named, home = Keys("{redbeat:1}:"), Keys("{redbeat:2}:")
    request = hide_request(named, "token", "id", home, [], None, 1, is_foreign=False)
    moved = {
        named.mover,
        named.moving,
        named.left,
        named.arriving,
        *(getattr(named, name) for name in OF_ENTRIES),
    }
    assert set(request.keys) == moved
    assert set(named.kinds) == {*EntryKeys._fields, "body", "owner", *OF_A_PART}
    assert named.passing == {getattr(named, name) for name in OF_ENTRIES | OF_BEATS}
    assert all(named.is_shared(getattr(named, name)) for name in SHARED)
    assert not any(named.is_shared(getattr(named, name)) for name in own_keys() - SHARED - {"generation"})


def test_what_is_written_beside_each_own_key_begins_with_what_it_holds() -> None:
    """The doctor goes by the kind, and readers by the sentence."""
    source = Path(keys.__file__).read_text(encoding="utf-8")
    found = re.findall(r'_OwnKey\("([a-z-]+)", "([a-z ]+)".*\n +"""(\w+)', source)
    assert len(found) == len(keys.OWN_KINDS)
    for name, kind, word in found:
        assert keys.OWN_KINDS[name] == kind
        assert keys.is_of_kind(word, kind), name
        assert word != "none"
