"""What is wrong on the command line ends in one sentence and a code, and nothing is done."""

from __future__ import annotations

import re
import shlex

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from tests.support.command_line import call
from tests.support.servers import Server

PASSWORD = "s3cret-w0rd"

#: commands, to a part of the sentence that they get
NOT_FOUND = {
    "show reprot": r"There is no entry 'reprot' in .*\. Did you mean report\?",
    "show zzzzzz": r"There is no entry 'zzzzzz' in redbeat::schedule at redis://[^?]*$",
    "set reprot --jitter 5": "Did you mean report",
    "pause reprot": "Did you mean report",
    "resume report reprot": "Did you mean report",
    "trigger reprot": "Did you mean report",
    "delete report reprot --yes": "Did you mean report",
    "next reprot": "Did you mean report",
    "why reprot": "Did you mean report",
    "backfill reprot --from 2024-01-01": "Did you mean report",
}
USAGE = {
    "pause report --until 2020-01-01": r"--until: 2020-01-01 00:00:00 UTC is in the past",
    "pause": "Give a NAME, or --match PATTERN",
    "add x echo": r"An entry needs a schedule: give one of --every, --cron, --at, --rrule, --solar",
    "add x echo --every 5 --cron @daily": "--every and --cron are two schedules",
    "add x echo --every soon": "'soon' is no length of time, such as 30s, 1h30m or 0.2: 'soon' is no unit",
    "add x echo --every 5x": "'x' is no unit or number",
    "add x echo --every 1h30": "a unit is missing",
    "add x echo --every 0": "'0' is no interval: it must be longer than 0 s",
    "add x echo --every -5": "'-5': a length of time can't be negative; write it as 30s, 1h30m or 0.2.",
    "add x echo --every nan": "'nan' is no length of time",
    "add x echo --every 1e300": "is no interval",
    "add x echo --cron '*/5 9-17 * 1,13 *'": "'13' is no number from 1 to 12.* field 4, at character 14",
    "add x echo --cron '* *'": "it has 2 fields instead of five",
    "add x echo --cron @dialy": "must be one of @yearly.* Did you mean @daily",
    "add x echo --at tomorrow": "'tomorrow' is no time; write it as 2030-12-24T18:00",
    "add x echo --rrule FREQ=DAYLY": "FREQ: must be one of YEARLY, .*, not DAYLY",
    "add x echo --rrule FREQ=DAILY;BYHUOR=9": "BYHUOR: a rule has no such part. Did you mean BYHOUR",
    "add x echo --rrule FREQ=DAILY;COUNT=3": "COUNT: needs a DTSTART",
    "add x echo --rrule FREQ=DAILY;BYHOUR=99": "--rrule 'FREQ=DAILY;BYHOUR=99': ",
    "add x echo --solar sunset,52.5": "is no event, latitude and longitude|lon",
    "add x echo --solar moonrise,52.5,13": "moonrise",
    "add x echo --every 5 --args [1,": r"'\[1,' is no JSON: Expecting value at column 4",
    "add x echo --every 5 --args {}": r"must be an array, as \[1, 2\]",
    "add x echo --every 5 --kwargs [1]": "must be an object",
    "add x echo --every 5 --args [NaN]": "NaN is no JSON",
    "add x echo --every 5 --timezone Europe/Berlni": "'Europe/Berlni'. Did you mean Europe/Berlin",
    "add x echo --every 5 --misfire later": "'later' is not one of",
    "add x echo --every 5 --jitter 5 --expires-after 3": "expires_after: must be more than jitter",
    "add x echo --every 5 --start-time 2030-01-01 --end-time 2029-01-01": "must not be before start_time",
    "add x echo --every 5 --exclude nope": "there is no calendar 'nope'",
    "add :schedule echo --every 5": "that key is RedBeat's own",
    "add x '' --every 5": "task",
    "add report echo --every 5": "There is an entry 'report' already",
    "set report": "There is nothing to change",
    "set report --unset jiter": "'jiter' is not one of",
    "set report --jitter 5 --unset jitter": "--jitter can't be both set and unset",
    "list --state broken": "'broken' is not one of",
    "list --limit -1": "is not in the range",
    "list --due-before soon": "'soon' is no time",
    "next report --match r*": "Give either a NAME or --match",
    "next --tz Europe/Berln": "unknown time zone 'Europe/Berln'",
    "backfill report --from 2024-02-01 --to 2024-01-01": "--to must not be before --from",
    "timeline --hours 0": "is not in the range",
    "lst": "No such command 'lst'",
}


@pytest.mark.parametrize("command", NOT_FOUND)
def test_an_entry_that_is_not_there_is_one_sentence_and_66(
    app: Celery, client: redis.Redis, command: str
) -> None:
    check_refused(app, client, command, 66, NOT_FOUND[command])


@pytest.mark.parametrize("command", USAGE)
def test_a_wrong_input_is_one_sentence_and_64(app: Celery, client: redis.Redis, command: str) -> None:
    check_refused(app, client, command, 64, USAGE[command])


def check_refused(app: Celery, client: redis.Redis, command: str, code: int, words: str) -> None:
    RedBeatSchedulerEntry("report", "echo", 86_400, app=app).save()
    before = {key: client.dump(key) for key in client.scan_iter()}
    done = call(app, *shlex.split(command))
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
