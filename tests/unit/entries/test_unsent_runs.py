"""Errors of sending a run that somebody asks for, as one sentence (redbeat/entries/sending.py)."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import EncodeError, OperationalError

from redbeat.entries.sending import naming_the_broker
from redbeat.errors import BrokerUnavailable, CallRefused, EntryBusy, RunNotSent

BROKER = "The broker amqp://somebody:**@127.0.0.1:1// can't be used: "
APP = Celery("unsent", broker="amqp://somebody:secret@127.0.0.1:1//", set_as_current=False)


@pytest.mark.parametrize(
    ("raised", "expected", "sentence"),
    [
        (OperationalError("refused"), BrokerUnavailable, BROKER),
        (
            ConnectionResetError("reset"),
            BrokerUnavailable,
            BROKER,
        ),
        (TypeError("add() takes 2"), CallRefused, "a can't be sent: TypeError('add() takes 2')"),
        (EncodeError("no JSON"), CallRefused, "a can't be sent: EncodeError('no JSON')"),
        (KeyError("x"), RunNotSent, "a can't be sent: KeyError('x')"),
    ],
)
def test_an_error_of_sending_says_whether_the_broker_or_the_call_is_wrong(
    raised: Exception, expected: type[RunNotSent], sentence: str
) -> None:
    with pytest.raises(RunNotSent) as caught, naming_the_broker(APP, "a"):
        raise raised
    assert type(caught.value) is expected
    assert str(caught.value).startswith(sentence)
    assert caught.value.name == "a"
    assert caught.value.__cause__ is raised


def test_an_error_of_redbeats_own_stays_as_it_is() -> None:
    busy: Any = EntryBusy("it runs", "redbeat:a")
    with pytest.raises(EntryBusy) as caught, naming_the_broker(APP, "a"):
        raise busy
    assert caught.value is busy
