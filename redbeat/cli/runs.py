"""``celery redbeat runs`` and ``rerun``: what is in progress, what has failed, and that once more."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from redbeat.cli.changes import check_failures, names_in_words
from redbeat.cli.operations import options_of
from redbeat.cli.parameters import (
    BACK,
    DRY_RUN,
    LIMIT,
    NAME,
    OBJECT_PER_RUN,
    ONLY_MATCHING,
    YES,
    Value,
    pass_session,
    zone_options,
)
from redbeat.cli.run_tables import print_runs
from redbeat.cli.session import INTERRUPTED, ReadingCommand, Session, SessionCommand
from redbeat.cli.tables import meter
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.rerun import find_reruns
from redbeat.entries.runs import (
    IN_PROGRESS,
    find_running,
    find_runs,
    read_states,
    with_histories,
)
from redbeat.entries.search import read_listed
from redbeat.entries.wording import in_words_of, one_line, when_in
from redbeat.history import OUTCOMES
from redbeat.log.text import counted
from redbeat.operations.running import Rerun, give_up, rerun_entry, rerun_failed
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError
from redbeat.runs.progress import UNTRACKED, hold_in_words, progress_in_words
from redbeat.runs.run import Run
from redbeat.schedules.times import TypedTime
from redbeat.store.runs import Runs
from redbeat.store.store import Store

STATES = Value("states", read_states)


@click.command(cls=ReadingCommand)
@click.argument("name", type=NAME, required=False)
@ONLY_MATCHING
@click.option(
    "--state",
    "states",
    metavar="STATE,...",
    type=STATES,
    help=f"Only runs in progress ({', '.join(IN_PROGRESS)}), or past ones with one of these outcomes: "
    f"{', '.join(OUTCOMES)}. Default: running; with --since all of them.",
)
@click.option(
    "--since",
    type=BACK,
    help="Past runs that have ended since this time: 1d, 'yesterday 9:00', or 2030-12-24T18:00. Those in "
    "progress, too, unless --state says otherwise.",
)
@LIMIT
@click.option(
    "--give-up",
    "is_giving_up",
    is_flag=True,
    help="End the runs in progress of the entry NAME as lost, so that it is free at once; asks first.",
)
@click.option("--by", metavar="WHO", help="With --give-up: who does it. Default: your login name.")
@YES
@zone_options
@OBJECT_PER_RUN
@pass_session
def runs(
    session: Session,
    name: str | None,
    match: str | None,
    states: list[str] | None,
    since: TypedTime | None,
    limit: int | None,
    is_giving_up: bool,
    by: str | None,
) -> None:
    """List the runs in progress, and runs that failed or were lost.

    Runs of the entry NAME, or of all entries, with workers and ages. With --since also runs that have ended
    since then, with any outcome.

    --state sent lists runs on their queues, started runs at work, retrying runs between two attempts.
    --state failed,lost,never_started lists failures of all entries. Other outcomes are known of the runs that
    the histories keep (redbeat_history). This needs workers that track runs.

    --give-up frees an entry from a run whose worker is gone: the run ends as lost, and a waiting run is sent.
    No task is terminated.
    """
    if is_giving_up:
        if name is None or match is not None or since is not None or limit is not None:
            raise CommandLineError("--give-up needs a NAME, and no --match, --since or --limit.", exits.USAGE)
        chosen = states or ["running"]
        if set(chosen) - IN_PROGRESS.keys():
            raise CommandLineError(
                f"--give-up is about runs in progress: {', '.join(IN_PROGRESS)}.", exits.USAGE
            )
        _give_up(session, name, chosen, by)
        return
    if session.is_yes or by is not None:
        raise CommandLineError("--yes and --by are for --give-up.", exits.USAGE)
    begin = None if since is None else session.time(since)
    found = find_runs(session.app, states, name=name, match=match, since=begin)
    if not found and name is not None:
        read_listed(session.app, name)  # else it was deleted, and has runs all the same
    shown = with_histories(session.app, found[: session.rows(limit)])
    if session.is_json:
        for run in shown:
            session.print_json(run.to_dict())
        return
    if not shown:
        session.note("There are no such runs.")
        if states is None and begin is None:
            session.note(
                "None is in progress. --since 1d shows past runs, --state failed,lost what went wrong."
            )
        return
    print_runs(session, shown, with_names=name is None)
    if any(run.state == "sent" for run in shown) and not Runs(Store(session.app)).has_workers():
        session.note(f"Of a run that is sent: {UNTRACKED}.")
    if len(found) > len(shown):
        session.note(f"{len(shown)} of {len(found)} shown; --limit 0 for all.")


def _give_up(session: Session, name: str, states: list[str], by: str | None) -> None:
    """End the runs in progress of one entry that are in these states, as lost."""
    now, zone = session.now(), session.zone
    found = find_running(session.app, name, states)
    if not found:
        read_listed(session.app, name)  # else it was deleted, and has runs all the same
        session.note("There are no such runs.")
        return
    for run in found:
        words = "; ".join(filter(None, (progress_in_words(run), hold_in_words(run, now))))
        session.note(f"{run.task_id}: {in_words_of(one_line(words), zone)}.")
    what = counted(len(found), "run", "runs")
    session.ask(f"Give up {what} of {one_line(name)} at {session.server}?")
    done = give_up(session.actor, name, [str(run.task_id) for run in found], by=by).runs
    for run in done if session.is_json else ():
        session.print_json(run.to_dict())
    session.summarize(f"Gave up {counted(len(done), 'run', 'runs')}.")
    if len(done) < len(found):
        raise CommandLineError(
            f"{len(found) - len(done)} of them have gone on or ended meanwhile, and were left alone; look at "
            "them once more.",
            exits.TRY_AGAIN,
        )


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@options_of(rerun_entry, "due")
@click.option(
    "--all-failed", "is_every", is_flag=True, help="Instead of NAME, all runs that have failed since --since."
)
@click.option(
    "--since", type=BACK, help="With --all-failed: runs that have failed since this time, such as 1d."
)
@ONLY_MATCHING
@DRY_RUN
@YES
@zone_options
@OBJECT_PER_RUN
@pass_session
def rerun(
    session: Session,
    name: str | None,
    due: TypedTime | None,
    is_every: bool,
    since: TypedTime | None,
    match: str | None,
) -> None:
    """Send a run of an entry once more, or all runs that have failed.

    Of the entry NAME it is the last run that has failed, was lost or never started. It has the same due
    time, and a task id of its own. A run that was sent once more isn't chosen again; with --due it is.
    --all-failed shows how many runs it finds, and asks first; what was sent once more is left out, so that
    the same command sends only what has failed since.
    """
    if not session.is_dry_run:
        session.require_application("rerun")
    if (name is None) == (not is_every):
        raise CommandLineError("Give a NAME, or --all-failed --since TIME.", exits.USAGE)
    if is_every:
        if since is None or due is not None:
            raise CommandLineError("--all-failed needs --since, and no --due.", exits.USAGE)
        _rerun_every(session, since, match)
        return
    if since is not None or match is not None:
        raise CommandLineError("--since and --match are for --all-failed.", exits.USAGE)
    _rerun_one(session, str(name), due)


def _rerun_one(session: Session, name: str, due: TypedTime | None) -> None:
    RedBeatSchedulerEntry.get(name, session.app)
    moment = None if due is None else session.time(due)
    done = rerun_entry(session.actor, name, due=moment, dry_run=session.is_dry_run)
    ended = f" ({done.outcome})" if done.outcome else ""
    which = f"The run of {one_line(name)} that was due at {when_in(done.due, session.zone)}{ended}"
    sent = f"is sent once more; its task id is {done.task_id}"
    session.report(
        _document_of(done), f"{which} {'would be sent once more' if session.is_dry_run else sent}."
    )


def _document_of(run: Rerun) -> dict[str, Any]:
    return {**asdict(run), "due": run.due.isoformat()}


def _rerun_every(session: Session, since: TypedTime, match: str | None) -> None:
    """Send all runs once more that have failed since a time and match, each once."""
    begin = session.time(since)
    to_do = find_reruns(RedBeatSchedulerEntry, session.app, begin, match or "*")
    found = to_do.runs
    total = sum(map(len, found.values()))
    what = f"{counted(total, 'run', 'runs')} of {names_in_words(list(found))}" if total else "0 runs"
    if session.is_dry_run:
        every = with_histories(session.app, [run for listed in found.values() for run in listed])
        for run in every if session.is_json else ():
            session.print_json(_document_of(Rerun.of(run)))
        if not session.is_json:
            print_runs(session, every)
        session.note(f"{what} would be sent once more.")
        check_failures(session, to_do.failed, len(to_do.failed) + len(to_do.entries))
        return
    if total:
        session.ask(f"Send {what} at {session.server} once more?")
    sent = list[Run]()
    with meter("Sending", total) as progress:

        def note(run: Run, task_id: str) -> None:
            sent.append(run)
            progress(len(sent))
            if session.is_json:
                session.print_json(_document_of(Rerun.of(run, task_id)))

        try:
            done = rerun_failed(
                session.actor,
                since=begin,
                match=match,
                chosen=[(run.name, run.due) for listed in found.values() for run in listed],
                limit=None,
                progress=note,
            )
        except KeyboardInterrupt:
            were = counted(len(sent), "run was", "runs were")
            words = f"Interrupted. {were} sent once more; the same command sends the rest."
            raise CommandLineError(words, INTERRUPTED) from None
    session.summarize(f"Sent {counted(len(sent), 'run', 'runs')} once more.")
    others = {name: reason for name, reason in done.failed.items() if name not in done.held}
    failed = {**to_do.failed, **others}
    check_failures(session, failed, len(to_do.failed) + len(to_do.entries))
    if done.held:
        raise CommandLineError(
            f"{counted(total - len(sent), 'run was', 'runs were')} not sent, as other runs of the same "
            "entries are in progress; the same command sends what is left later. "
            f"{one_line(next(iter(done.held.values())))}",
            exits.TRY_AGAIN,
        )
