"""What is wrong on the command line ends in one sentence and a code, and nothing is done."""

from __future__ import annotations

import re

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from tests.support.command_line import call
from tests.support.servers import Server

PASSWORD = "s3cret-w0rd"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("show reprot", 66, r"There is no entry 'reprot' in .*\. Did you mean report\?"),
        ("show zzzzzz", 66, r"There is no entry 'zzzzzz' in redbeat::schedule at redis://[^?]*$"),
        ("set reprot --jitter 5", 66, "Did you mean report"),
        ("pause reprot", 66, "Did you mean report"),
        ("resume report reprot", 66, "Did you mean report"),
        ("trigger reprot", 66, "Did you mean report"),
        ("delete report reprot --yes", 66, "Did you mean report"),
        ("next reprot", 66, "Did you mean report"),
        ("why reprot", 66, "Did you mean report"),
        ("backfill reprot --from 2024-01-01", 66, "Did you mean report"),
        ("pause report --until 2020-01-01", 64, r"--until: 2020-01-01 00:00:00 UTC is over"),
        ("pause", 64, "Give a NAME, or --match PATTERN"),
        ("add x echo", 64, r"An entry needs a schedule: give one of --every, --cron, --at, --rrule, --solar"),
        ("add x echo --every 5 --cron @daily", 64, "--every and --cron are two schedules"),
        (
            "add x echo --every soon",
            64,
            "'soon' is no length of time, as 30s, 1h30m or 0.2: 'soon' is no unit",
        ),
        ("add x echo --every 5x", 64, "'x' is no unit or number"),
        ("add x echo --every 1h30", 64, "a unit is missing"),
        ("add x echo --every 0", 64, "'0' is no interval: it must be longer than 0 s"),
        ("add x echo --every -5", 64, "'-5' is no length of time, .*: it can't be negative"),
        ("add x echo --every nan", 64, "'nan' is no length of time"),
        ("add x echo --every 1e300", 64, "is no interval"),
        (
            "add x echo --cron */5_9-17_*_1,13_*",
            64,
            "month_of_year: '13' is no number from 1 to 12.* field 4, at character 14",
        ),
        ("add x echo --cron *_*", 64, "it has 2 fields instead of five"),
        ("add x echo --cron @dialy", 64, "it is none of @yearly.* Did you mean @daily"),
        ("add x echo --at tomorrow", 64, "'tomorrow' is no time; write it as 2030-12-24T18:00"),
        ("add x echo --rrule FREQ=DAYLY", 64, "FREQ: DAYLY is none of YEARLY"),
        (
            "add x echo --rrule FREQ=DAILY;BYHUOR=9",
            64,
            "BYHUOR: a rule has no such part. Did you mean BYHOUR",
        ),
        ("add x echo --rrule FREQ=DAILY;COUNT=3", 64, "COUNT: needs a DTSTART"),
        ("add x echo --rrule FREQ=DAILY;BYHOUR=99", 64, "--rrule 'FREQ=DAILY;BYHOUR=99': "),
        ("add x echo --solar sunset,52.5", 64, "is no event, latitude and longitude|lon"),
        ("add x echo --solar moonrise,52.5,13", 64, "moonrise"),
        ("add x echo --every 5 --args [1,", 64, r"'\[1,' is no JSON: Expecting value at column 4"),
        ("add x echo --every 5 --args {}", 64, r"must be an array, as \[1, 2\]"),
        ("add x echo --every 5 --kwargs [1]", 64, "must be an object"),
        ("add x echo --every 5 --args [NaN]", 64, "NaN is no JSON"),
        (
            "add x echo --every 5 --timezone Europe/Berlni",
            64,
            "unknown time zone 'Europe/Berlni'. Did you mean Europe/Berlin",
        ),
        ("add x echo --every 5 --misfire later", 64, "'later' is not one of"),
        ("add x echo --every 5 --jitter 5 --expires-after 3", 64, "expires_after: must be more than jitter"),
        (
            "add x echo --every 5 --start-time 2030-01-01 --end-time 2029-01-01",
            64,
            "end_time: must not be before start_time",
        ),
        ("add x echo --every 5 --exclude nope", 64, "there is no calendar 'nope'"),
        ("add :schedule echo --every 5", 64, "that key is RedBeat's own"),
        ("add x _ --every 5", 64, "task"),
        ("add report echo --every 5", 64, "There is an entry 'report' already"),
        ("set report", 64, "There is nothing to change"),
        ("set report --unset jiter", 64, "'jiter' is not one of"),
        ("set report --jitter 5 --unset jitter", 64, "--jitter can't be both set and unset"),
        ("list --state broken", 64, "'broken' is not one of"),
        ("list --limit -1", 64, "is not in the range"),
        ("list --due-before soon", 64, "'soon' is no time"),
        ("next report --match r*", 64, "Give either a NAME or --match"),
        ("next --tz Europe/Berln", 64, "unknown time zone 'Europe/Berln'"),
        ("backfill report --from 2024-02-01 --to 2024-01-01", 64, "--to must not be before --from"),
        ("timeline --hours 0", 64, "is not in the range"),
        ("lst", 64, "No such command 'lst'"),
    ],
)
def test_a_wrong_input_is_one_sentence(
    app: Celery, client: redis.Redis, command: str, code: int, words: str
) -> None:
    RedBeatSchedulerEntry("report", "echo", 86_400, app=app).save()
    before = {key: client.dump(key) for key in client.scan_iter()}
    done = call(
        app,
        *(
            "" if word == "_" else word.replace("_", " ") if " --cron " in command else word
            for word in command.split(" ")
        ),
    )
    assert done.exit_code == code, done.output
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("Error: ")
    assert re.search(words, sentence), sentence
    assert "Traceback" not in done.output
    assert done.stdout == ""
    assert {key: client.dump(key) for key in client.scan_iter()} == before


@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["list", "--json"],
        ["count"],
        ["show", "x"],
        ["next"],
        ["timeline"],
        ["add", "x", "echo", "--every", "5"],
        ["set", "x", "--jitter", "5"],
        ["delete", "x", "--yes"],
        ["pause", "x"],
        ["resume", "--match", "*"],
        ["trigger", "x"],
        ["backfill", "x", "--from", "2024-01-01"],
        ["purge"],
    ],
)
def test_no_server_a_refusal_and_wrong_settings_have_codes_of_their_own(
    app: Celery, client: redis.Redis, server: Server, command: list[str]
) -> None:
    for url, code in (
        (f"redis://:{PASSWORD}@127.0.0.1:1/0", 69),
        (f"redis://nobody:{PASSWORD}@127.0.0.1:{server.port}/0", 77),
        (f"http://:{PASSWORD}@127.0.0.1/0", 78),
    ):
        app = Celery("test", broker="memory://", set_as_current=False)
        app.conf.redbeat_redis_url = url
        done = call(app, *command)
        assert done.exit_code == code, (url, done.output)
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("Error: ")
        assert done.stdout == ""
        assert PASSWORD not in done.output
    done = call(Celery("test", set_as_current=False), *command)
    assert done.exit_code == 78, done.output


def test_a_key_of_another_type_is_named(app: Celery, client: redis.Redis) -> None:
    client.set("redbeat::schedule", "x")
    for command in (["list"], ["next"], ["timeline"], ["purge"], ["count"], ["show", "x"]):
        done = call(app, *command)
        assert done.exit_code not in (0, 1), done.output
        assert "redbeat::schedule holds something that is no sorted set" in done.stderr, done.output


def test_an_entry_that_somebody_else_changes_all_the_time_is_75(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    RedBeatSchedulerEntry("report", "echo", 60, app=app).save()
    save = RedBeatSchedulerEntry.save

    def save_after_another(
        entry: RedBeatSchedulerEntry, *, if_unchanged: bool = False
    ) -> RedBeatSchedulerEntry:
        other = RedBeatSchedulerEntry.get("report", app)
        other.args = [*(other.args or ()), 1]
        save(other)
        return save(entry, if_unchanged=if_unchanged)

    monkeypatch.setattr(RedBeatSchedulerEntry, "save", save_after_another)
    done = call(app, "set", "report", "--jitter", "5")
    assert (done.exit_code, "report" in done.stderr) == (75, True), done.output
    assert RedBeatSchedulerEntry.get("report", app).jitter == 0
