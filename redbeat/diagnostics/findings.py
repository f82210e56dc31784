"""Findings of ``doctor``: the table of their texts, and the diagnosis that collects them.

A row of the table has a severity and a kind, ``fix`` if there is one, what is wrong, and what to do. A check
fills in the values in braces. A kind may have several rows: what follows its ``/`` tells them apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple


class Severity(IntEnum):
    """How bad a finding is; the values are the exit codes of ``celery redbeat doctor``."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


class Text(NamedTuple):
    """A row of the table."""

    severity: Severity
    is_fixable: bool
    problem: str
    advice: str


def _parsed(table: str) -> dict[str, Text]:
    """Return the rows of a table by their keys."""
    rows = {}
    for row in re.split(r"\n+(?=\S)", table.strip()):
        head, _, text = " ".join(row.split()).partition(": ")
        severity, key, *fix = head.split()
        rows[key] = Text(Severity[severity.upper()], bool(fix), *text.split(" -> "))
    return rows


#: the rows, in the order of the modules of ``checks``
TEXTS = _parsed("""
error setting: {problem}
    -> Correct it; nothing else was looked at.
error wrong-type: {problem}
    -> Look at what it holds before you delete it.
warning wrong-type/own: It holds something that isn't a {expected}, so {effect}.
    -> Look at what it holds before you delete it.
note refused: It couldn't be made, because the server refuses: {said}.
    -> Call the doctor as a user with more rights.
note unseen: Not all was looked at within {seconds:g} s: {unseen}.
    -> Give it longer with --max-seconds.

error no-leader: No beat leads {what}, and {due}.
    -> Start a beat; where one runs, compare its settings with these: server, database, prefix.
error no-leader/beats: No beat leads {what}, though {beats}, and {due}.
    -> Look into the beats' logs: one of them should take its lock within seconds.
error blocked: The leader sends nothing, and {due}: {obstacle}
    -> Beat's log has the reason, and beat sends by itself when that is over.
error late: Beat is late: {due}.
    -> Look into beat's log: the broker may be away, beat may hang, or more is due than it sends.
note open-lock: A user with the documented rights of a writer may overwrite the lock and stop all beats:
    {lock_key} could be an entry's name.
    -> Stop all beats, set redbeat_lock_key to '{better}', and start them again, unless no other users
    write.
error lock-for-ever: The lock never expires, so no beat can lead: it was set by hand ({token}).
    -> Delete it: redis-cli DEL {lock_key}
warning foreign-leader: A program other than RedBeat 3 holds the lock, for {seconds:.0f} s more: {what}.
    -> RedBeat 3 doesn't take it over: stop that program, and delete the lock if it stays behind.
warning silent-leader: The leader, process {pid} on {host}, has done nothing for {since}.
    -> Look into the log of that process. If it has died, a standby takes over; without one, start a beat.
warning mixed-versions: A beat of celery-redbeat 2.x seems to have run it at {at}, while RedBeat 3 on {host}
    leads.
    -> Stop that beat, which has another lock or none: it may send runs twice, and ignores policies.

error layout: {problem}
    -> {advice}Nothing else was looked at.
error layout/setting: It is {setting}, and the schedule {layout}: {effect}.
    -> {remedy}. If it is the schedule that is to change: celery redbeat reshard --to {shards}.
error hidden fix: What stands there was being moved when its mover ended: no beat runs it there.
    -> A beat that starts moves it on within seconds; --fix does it now.
error misplaced fix: It is in {here} and belongs in {home}, so it isn't found: a program with other shards
    has written it.
    -> Correct that program; --fix moves it where it belongs.
error former-part fix: No beat looks there, and there {entries}: the schedule {layout}, which the writer
    doesn't know.
    -> Correct that program; --fix moves what it has written where it belongs.

warning unknown-setting: There is no such setting, so it does nothing: {hint}
    -> Correct its name, or remove it.
note retry-period: retry_period isn't set, so beat ends when Redis can't be reached, until it is restarted.
    -> Set {setting} = {{'retry_period': 60}}, in seconds; -1 is for ever.
error eviction: Redis may evict the schedule: its maxmemory-policy is {policy}.{node}
    -> Set maxmemory-policy to noeviction or one of volatile-*, or use a server of its own.
warning persistence: The server keeps nothing on disk: a restart loses all entries that aren't in
    beat_schedule.{node}
    -> Switch appendonly on.
warning clock: This machine's clock is {seconds:.1f} s {which} the server's.
    -> Let both follow one time server: workers drop expired messages by their own clock.
warning cluster: The server is a node of a Redis Cluster, which the settings don't say: that works with one
    node only.
    -> Set {setting} = {{'cluster': True}}.
error replica: The server is a replica of {master}, which beat can't write to.
    -> Name the master, or the sentinels that know which one it is.
error rights: The doctor was called as this user. It lacks rights that beat needs: {missing}.
    -> If beat uses it, add the rights to its ACL rule; else call the doctor with beat's settings. See
    'Users with limited rights' in the documentation's page on configuration.
note rights/dashboard: It may do less than beat's user has to, as a dashboard's should: the rights of beat's
    user aren't known here.
    -> celery redbeat doctor, called with beat's settings, looks at them.
note rights/unknown: Whether it has all rights that beat needs isn't known: the server doesn't tell.
    -> Compare its rule with 'Users with limited rights' in the documentation's page on configuration.

warning tasks-unknown: The modules with its tasks can't be imported: {said}.
    -> Correct its settings imports and include; until then unknown tasks can't be found.
warning unknown-task: The application has no task {task!r}.{hint}
    -> Correct the name; if only the workers import that task, nothing is wrong.
error task-routes: It is invalid, so no message can be sent: {said}.
    -> Correct the setting: a dictionary, a function, or the path of one that can be imported.
error unserialisable: Its run can't be written as a message: {reason}
    -> Correct its options or its arguments.
error no-route: The messages of {names} can't be routed: {problem}.
    -> Correct its queue, or task_routes and task_queues.
error broker: The workers can't be asked, as the broker fails: {said}.
    -> Check whether it runs, and whether broker_url is right.
warning no-worker: No worker has answered within {seconds:g} s.
    -> Start one, or give them longer: --workers takes a number of seconds.
warning no-consumer: The runs of {names} go to this queue, and no worker takes from it ({workers} answered).
    -> Start a worker with -Q, or correct the entries' queue.
error static: beat_schedule: it is invalid, so beat does not store it: {problem}.
    -> Correct it in the code.
error declaration: {problem}
    -> Correct it; no beat starts with this code.
error stray-declaration: This schedule isn't stored: {reason}
    -> Put @scheduled over or under the decorator that makes the task.
note not-stored: It is declared at {place}, and isn't stored.
    -> A beat stores it when it starts with this code, or becomes leader.

error missing-hash fix: It is in the schedule, but its hash is gone: deleted by hand, or evicted by the
    server.
    -> Save the entry again; --fix takes what is left out of the schedule.
error quarantined: {problem}
    -> {remedy} and save it again.{since}
error failing: Its run couldn't be sent, {attempts} times so far: {reason}
    -> Correct its options or arguments; beat tries again every minute.
error calendar: It can't run: {reason}
    -> Save the calendar, or remove the entry's exclude.
warning unknown-key: It has keys that are ignored: {keys}.
    -> Correct them; until then they count as missing.
error no-time: Its next time can't be computed: {said}.
    -> Give it another schedule.
warning no-time/never-ran: Its schedule has no time after now, and it has never run.
    -> Give it another schedule, or delete it.
warning never-again: It never runs again, as its score is {score:g}, though its schedule has a time at
    {time}.
    -> If that isn't intended, save it with another schedule or policy, or set its score.
note never-again/over: It never runs again: {why}
    -> Delete it when it isn't needed any more.
warning ping-host: Its service isn't called, as redbeat_ping_hosts doesn't have {host}.
    -> Add it there if you trust it, and restart beat; if beat's settings have it, nothing is wrong.
note downgraded: Taken out for celery-redbeat 2.x: {names}.
    -> Nothing: what is there comes back when a beat of version 3 leads.

warning slow-runs: Its runs take {median} at the median, and the next one is due after {interval}.
    -> Give it a longer interval or another overlap, or let its task do less.
warning failing-runs: Its last {count} runs have failed{said}.
    -> celery redbeat show has the last ones; rerun sends one once more when the cause is gone.
warning never-started: No worker has begun its last {count} runs within queue_timeout.
    -> See whether a worker takes from its queue and tracks runs; celery redbeat route names the queue.
warning rejected-runs: Its last {count} runs were rejected{said}.
    -> If its worker has no such task: import its module there, or correct the entry's task or queue.
error untracked: No live worker tracks runs, which the policy of {names} needs: with an overlap other than
    allow each run holds back the next until its queue_timeout is over.
    -> Start the workers, or call redbeat.track_runs(app) in the module that makes the app and restart them.
warning waiting-run: Its run {task_id} has waited for long, and with overlap {overlap} it holds back the
    next one: {progress}.
    -> It is on its queue, or its worker was killed: then the broker sends the message again after its
    visibility timeout. queue_timeout limits the wait; celery redbeat runs {name} --give-up ends it now.
warning overdue-run: Its run {task_id} takes too long: {progress}.
    -> Look at what it does; revoke_overdue ends such runs. It holds back no other.

warning visibility-timeout: {problem}.
    -> {remedy}
error late-messages: {count} should have been sent, the first at {first}.
    -> A beat of version 3 sends them: celery redbeat status says whether one leads.
error unsent-message: It couldn't be sent: {reason}
    -> It is tried again by itself; celery redbeat later show says what it is, and later cancel takes it
    away.
error unscheduled-message: It is a stored message, but it isn't in {later}, so it isn't sent.
    -> redis-cli ZADD {later} SECONDS {key} puts it there, with its time in UNIX seconds; 0 sends it at
    once.
note orphan-body: It is the body of a stored message that doesn't exist any more.
    -> It does no harm; redis-cli DEL {key} frees its memory.
warning orphan-static fix: {statics} names it as an entry of beat_schedule, but there is no such entry.
    -> The next start of a beat saves it again where beat_schedule has it; --fix removes the name.
warning removed-static: It came from the beat_schedule of {owners}, and a beat of celery-redbeat 2.x, whose
    beat_schedule doesn't have it, seems to have removed it.
    -> Stop all beats of 2.x on this schedule; the next start of that app's beat saves it again.
note orphan-key fix: It belongs to the entry {owner!r}, which doesn't exist any more.
    -> It does no harm; --fix deletes it.
note unscheduled: It isn't in {schedule}, so beat doesn't run it.{problem}
    -> If that is on purpose, nothing is wrong. Else celery redbeat set {name} --enabled brings it back.

note lock: No beat holds the lock.
    -> A beat of version 3 leads as soon as it starts.
warning lock/none: There is no lock, so beats of 2.x and 3 would send each run twice.
    -> Stop every beat of 2.x before you start one of version 3.
note lock/unknown: Which beat holds the lock is unknown, because the server refuses.
    -> Add the missing rights, or call the doctor as another user.
warning lock/version-3: A beat of version 3 leads already: process {pid} on {host}.
    -> Nothing is left to compare; celery redbeat doctor checks the schedule.
note lock/version-2: A beat of 2.x holds the lock, which expires in {rest} unless that beat extends it.
    -> Stop that beat with SIGTERM: it releases the lock, and a beat of version 3 leads within a second.
    After kill -9 version 3 waits for {rest}, or until you call redis-cli DEL {lock_key}
error server-version: It is Redis {version}, and version 3 needs 6.2 or newer.
    -> Upgrade the server first.
note setting/not-passed: Version 3 does not pass {options} to the client of the schedule.
    -> Put options of that client into redbeat_redis_options.
error setting/prefix: In a cluster the default prefix of version 3 is {prefix}, and 2.x uses redbeat:
    -> Copy the keys to the new prefix while no beat runs: see 'Moving to a cluster' on the page on
    upgrading.
warning zone: beat_schedule: 2.x runs it by {old}. Version 3 runs it by {zone}.
    -> Check its next runs with celery redbeat next, once version 3 leads.
warning override: Version 3 does not call it.
    -> {remedy}.
note not-in-2x: {effect}: {reason}
    -> Version 3 keeps it, and does not run it.
warning not-in-2x/in-3: {effect}: {reason}
    -> Version 3 runs it.
warning not-in-3: 2.x may run it, and version 3 quarantines it.
    -> Correct it before the upgrade.
error name: {problem}
    -> Save it under another name, and delete this one.
warning score: Its score is {score:.0f}, after the year 9999, so neither version runs it.
    -> Write a score in seconds: milliseconds are a usual cause.
warning score/zero: Its score is 0: version 3 runs it at once, and 2.x asks its schedule first.
    -> To prevent that, call reschedule() of the entry.
note disabled: It is disabled, and its score is in the past. 2.x may run it at once when it is enabled.
    -> Version 3 runs it at the next time of its schedule. To run it at once as well, use trigger.
note policy: 2.x {ignored}, and version 3 obeys it.
    -> Remove the field if that is not intended.
warning missed: {count} since {due} not sent.
    -> Version 3 sends {sent} when it leads (misfire is {misfire}). To prevent that, call reschedule() of
    the entry.
warning missed/none: {count} since {due} not sent.
    -> Version 3 sends none of them: {why}.
""")

#: the kinds that ``redbeat.diagnostics.fixes`` repairs without losing a definition
FIXABLE = frozenset(key for key, text in TEXTS.items() if text.is_fixable)
#: kinds that are reported once for each subject, whichever check finds it
_ONCE = ("wrong-type", "unknown-task")
#: how many findings of a kind are kept; others are counted
MAX_OF_A_KIND = 10_000
#: how many findings of a kind are shown among others, so that errors aren't lost among notes
SHOWN_OF_A_KIND = {Severity.ERROR: 10, Severity.WARNING: 3, Severity.NOTE: 3}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may be.

    Attributes:
        kind: which check has found it, for programs.
        about: the entry, key, setting, queue or server that it is about.
        problem: what is wrong, one sentence.
        advice: what to do, one sentence or two.
        excerpt: the part of the stored text that is wrong; '' where there is none.
        target: what its fix repairs: a member of the schedule, a name among the statics, or a key.
        entry: the name of the entry that it is about; None: it is about something else.
    """

    severity: Severity
    kind: str
    about: str
    problem: str
    advice: str
    excerpt: str = ""
    target: str = ""
    entry: str | None = None

    @property
    def is_fixable(self) -> bool:
        """Whether ``--fix`` can repair it."""
        return self.kind in FIXABLE

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON."""
        return {
            "severity": self.severity.name.lower(),
            "kind": self.kind,
            "about": self.about,
            "problem": self.problem,
            "advice": self.advice,
            "excerpt": self.excerpt or None,
            "fixable": self.is_fixable,
        }


def found(
    key: str,
    about: str,
    /,
    *,
    severity: Severity | None = None,
    excerpt: str = "",
    target: str = "",
    entry: str | None = None,
    **values: Any,
) -> Finding:
    """Return the finding of a row of ``TEXTS`` with these values.

    Arguments:
        severity: another than that of the row.
    """
    usual, _, problem, advice = TEXTS[key]
    kind, texts = key.partition("/")[0], (problem.format_map(values), advice.format_map(values))
    return Finding(usual if severity is None else severity, kind, about, *texts, excerpt, target, entry)


@dataclass(frozen=True)
class Group:
    """The findings of a kind and severity.

    Attributes:
        findings: those that are kept, or shown.
        count: how many there are.
    """

    severity: Severity
    kind: str
    findings: Sequence[Finding]
    count: int

    @property
    def is_fixable(self) -> bool:
        """Whether ``--fix`` can repair them."""
        return self.kind in FIXABLE


@dataclass
class Diagnosis:
    """What an examination has found.

    Attributes:
        findings: in the order of the checks.
        more: how many there are besides, by their kind.
        seen: how many entries were looked at.
        server: the URL of the schedule's server, without its password; None: a finding says why it isn't
            known.
        has_asked_workers: workers were to say which queues they take from.
    """

    findings: list[Finding] = field(default_factory=list)
    more: Counter[str] = field(default_factory=Counter)
    seen: int = 0
    server: str | None = None
    has_asked_workers: bool = False
    _counts: Counter[str] = field(default_factory=Counter)
    _told: set[tuple[str, str]] = field(default_factory=set)

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings."""
        for finding in findings:
            subject = (finding.kind, finding.about)
            if subject in self._told:
                continue
            if finding.kind in _ONCE:
                self._told.add(subject)
            self._counts[finding.kind] += 1
            if self._counts[finding.kind] > MAX_OF_A_KIND:
                self.more[finding.kind] += 1
            else:
                self.findings.append(finding)

    @property
    def severity(self) -> Severity:
        """The highest severity of the findings; NOTE if there are none."""
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)

    def groups(self) -> Iterator[Group]:
        """Yield the findings, the worst first, by their kinds."""
        groups: dict[tuple[Severity, str], list[Finding]] = {}
        for finding in sorted(self.findings, key=lambda finding: -finding.severity):
            groups.setdefault((finding.severity, finding.kind), []).append(finding)
        last_of = {kind: severity for severity, kind in groups}
        for (severity, kind), findings in groups.items():
            more = self.more[kind] if last_of[kind] == severity else 0
            yield Group(severity, kind, findings, len(findings) + more)

    def counts(self) -> dict[str, int]:
        """Return how many findings there are of each severity, the worst first, without zeros."""
        counts: Counter[str] = Counter()
        for group in self.groups():
            counts[group.severity.name.lower()] += group.count
        return dict(counts)

    def to_dict(self, repairs: Sequence[str] | None = None) -> dict[str, Any]:
        """Return it as a dict of plain JSON, with the sentences about repairs; None: none were wanted."""
        return {
            "severity": self.severity.name.lower() if self.findings else None,
            "exit_code": int(self.severity),
            "server": self.server,
            "entries": self.seen,
            "findings": [finding.to_dict() for finding in self.findings],
            "more": dict(self.more),
            "repairs": None if repairs is None else list(repairs),
        }
