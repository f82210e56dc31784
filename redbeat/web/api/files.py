"""The schedule as a file: plan, apply, export and import."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redbeat.access import Right
from redbeat.errors import FileError
from redbeat.log.text import counted
from redbeat.manifest.format import decode_file, read_file, write_file
from redbeat.manifest.plan import MAX_ENTRIES
from redbeat.operations import files
from redbeat.operations.files import FileChange
from redbeat.store.members import count_members
from redbeat.store.store import Store
from redbeat.web.api.derived import field_of
from redbeat.web.api.etags import changed, etag_of
from redbeat.web.api.kinds import FLAG, Field, one_of
from redbeat.web.api.operations import IF_MATCH, JSON, YAML, Answer, Body, Call, Operation
from redbeat.web.api.problems import Refusal
from redbeat.web.api.schemas import of

#: what a file is called in sentences about it
ORIGIN = "body"


def plan_file(call: Call) -> Answer:
    """Say what applying a file would change."""
    return _planned(call, _change(call, "apply"))


def apply_file(call: Call) -> Answer:
    """Store the entries of a file, all in one step."""
    return _applied(call, _change(call, "apply"))


def import_file(call: Call) -> Answer:
    """Store the entries that export has written."""
    change = _change(call, "import")
    return _planned(call, change) if call.query["dry_run"] else _applied(call, change)


def _change(call: Call, verb: str) -> FileChange:
    if not call.body:
        raise FileError(f"{ORIGIN}: is empty.", ORIGIN)
    declared = read_file(decode_file(call.body, ORIGIN), ORIGIN)
    choices = {name: value for name, value in call.query.items() if name != "dry_run"}
    return FileChange(declared, verb, **choices)


def _planned(call: Call, change: FileChange) -> Answer:
    made = files.plan_file(call.actor, change)
    return Answer(
        {**files.document_of(call.actor, made), "is_applied": False},
        headers={"ETag": etag_of(files.fingerprint(call.actor, made))},
    )


def _applied(call: Call, change: FileChange) -> Answer:
    done = files.apply_file(call.actor, change, seen=_seen(call))
    if not done.is_done:
        raise changed(
            "The schedule has changed since that plan was made, so nothing was done. Look at the plan again.",
            files.fingerprint(call.actor, done.plan),
        )
    return Answer({**files.document_of(call.actor, done.plan), "is_applied": bool(done.plan)})


def export_file(call: Call) -> Answer:
    """Return the stored entries as a file."""
    count = count_members(Store(call.app))
    if count > MAX_ENTRIES:
        raise Refusal(
            422,
            f"There are {counted(count, 'entry', 'entries')}, more than one answer takes; celery redbeat "
            "export writes them.",
        )
    found = files.export_file(call.actor, **files.export_file.arguments(call.query))
    is_json = call.query["format"] == "json"
    text = write_file(found.declared, is_json=is_json)
    return Answer(text, media=JSON if is_json else YAML)


def _seen(call: Call) -> str | None:
    given = call.headers[IF_MATCH].strip()
    if not given or given == "*":
        return None
    if len(given) < 2 or (given[0], given[-1]) != ('"', '"'):
        raise Refusal(400, f"{IF_MATCH} must be the ETag of a plan.")
    return given[1:-1]


_FIELDS = {one.name: field_of(one) for one in files.plan_file.parameters}
_APPLYING = [_FIELDS[name] for name in ("owner", "prune", "take_over")]


def _endpoint(
    path: str,
    about: str,
    call: Callable[[Call], Answer],
    fields: Sequence[Field],
    headers: Sequence[str] = (),
) -> Operation:
    return Operation(
        *("PUT", path, path[1:], Right.EDIT, about, call),
        {200: of("Plan")},
        fields,
        Body(media=(JSON, YAML, "application/x-yaml", "text/yaml"), is_needed=True),
        headers,
        has_etag=call is not apply_file,
    )


OPERATIONS: Sequence[Operation] = (
    _endpoint("/plan", "What applying a file would change; nothing is done.", plan_file, _APPLYING),
    _endpoint("/apply", "Store the entries of a file, all in one step.", apply_file, _APPLYING, [IF_MATCH]),
    _endpoint(
        "/import",
        "Store the entries that export has written.",
        import_file,
        [
            *(_FIELDS["owner"], _FIELDS["replace"]),
            Field("dry_run", FLAG, "Change nothing, and answer what would be changed.", default=False),
        ],
        [IF_MATCH],
    ),
    Operation(
        *("GET", "/export", "export", Right.EDIT, "The entries as a file.", export_file),
        {200: of("File")},
        [
            *map(field_of, files.export_file.parameters),
            Field("format", one_of(("json", "yaml")), "How it is written.", default="json"),
        ],
        is_heavy=True,
    ),
)
