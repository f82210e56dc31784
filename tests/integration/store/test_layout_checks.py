"""Every script that writes checks the layout first: a process that knows a former layout writes nothing.

``Script.call`` refuses a call that does not name the part of the schedule; the calls are made here directly.
"""

from __future__ import annotations

import re

import pytest
import redis
from redis.exceptions import ResponseError

from redbeat.keys import Keys
from redbeat.store.scripts.script import Call
from tests.support.scripts import SCRIPTS

WRITING_COMMAND = re.compile(
    r"call\('(SET|DEL|UNLINK|INCR|P?EXPIRE|H(SET(NX)?|DEL|INCRBY)|Z(ADD|REM\w*)|S(ADD|REM)"
    r"|[LR](PUSH|POP|REM|SET|TRIM)|XADD)'"
)
#: scripts that write without the check: they concern the layout itself, or data that no shard holds
UNCHECKED = {
    *("create_layout", "raise_generation", "change_layout"),
    "release_lock",
}
WRITING = {name for name, script in SCRIPTS.items() if WRITING_COMMAND.search(script.source)}


def test_scripts_that_write_check_the_layout() -> None:
    assert {name for name, script in SCRIPTS.items() if script.is_checking} == WRITING - UNCHECKED


@pytest.mark.parametrize("known", ["5 4", ""], ids=["former layout", "no layout"])
@pytest.mark.parametrize("name", sorted(WRITING - UNCHECKED))
def test_script_called_with_a_former_layout_is_refused_and_writes_nothing(
    client: redis.Redis, name: str, known: str
) -> None:
    part = Keys("the-", "the-schedule", "the-statics", known)
    client.set(part.generation, "6 4")
    with pytest.raises(ResponseError, match=rf'^RESHARDED the-:generation holds "6 4", not "{known}"'):
        Call(SCRIPTS[name], [part.schedule], within=part).send(client)
    assert client.keys() == [part.generation]
