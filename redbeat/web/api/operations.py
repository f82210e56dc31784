"""What an operation of the REST interface is: its path, its verb, its right, what it is given and answers.

Invariant: routes, the OpenAPI document and the table in the documentation are made from these alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redbeat.access import Right
from redbeat.operations.actor import Actor
from redbeat.web.api.addresses import segment_of
from redbeat.web.api.parameters import Field

JSON, MERGE_PATCH, PROBLEM = "application/json", "application/merge-patch+json", "application/problem+json"
YAML = "application/yaml"


@dataclass(frozen=True)
class Answer:
    """What an operation answers.

    Attributes:
        document: plain JSON; with ``media`` it is text.
        media: the media type of the text; '': it is JSON.
    """

    document: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    media: str = ""


@dataclass(frozen=True)
class Body:
    """What is sent to an operation.

    Attributes:
        fields: the members of its JSON object.
        component: the name of the schema of its JSON object, which has no ``fields`` then.
        media: the media types that are taken; the first one is assumed where a request without a body has
            none. Others than JSON are files, which reach the operation as they are.
        is_needed: there must be one.
        exactly_one: of these members there must be one, and no other.
    """

    fields: Sequence[Field] = ()
    component: str = ""
    media: Sequence[str] = (JSON,)
    is_needed: bool = False
    exactly_one: Sequence[str] = ()

    @property
    def is_file(self) -> bool:
        """Whether the operation reads the bytes itself."""
        return not self.fields and not self.component


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        method: of HTTP.
        path: below ``/api/v1``; a part in braces is an address, or a value.
        verb: the command of the command line.
        right: what it takes. Where it depends on what is given, the verb itself asks for more.
        about: one sentence.
        call: does it.
        answers: the schemas of what it answers, by status code.
        query: the parameters of its query.
        body: None: there is none.
        headers: those of ``HEADERS`` that count.
        has_etag: its answer has an ETag; a new thing's has its Location, too.
        is_heavy: it may take seconds, and one such operation is at work at a time.
        components: schemas that ``answers`` refer to, by their names.
    """

    method: str
    path: str
    verb: str
    right: Right
    about: str
    call: Callable[[Call], Answer]
    answers: Mapping[int, Any]
    query: Sequence[Field] = ()
    body: Body | None = None
    headers: Sequence[str] = ()
    has_etag: bool = False
    is_heavy: bool = False
    components: Mapping[str, Any] = field(default_factory=dict)


IF_MATCH, IF_NONE_MATCH, IDEMPOTENCY_KEY = "If-Match", "If-None-Match", "Idempotency-Key"
#: the headers of requests that some operations look at
HEADERS = {
    IF_MATCH: "The ETag of what was seen: if it has changed since, nothing is done (412).",
    IF_NONE_MATCH: "'*': only if there is none yet, else nothing is done (412).",
    IDEMPOTENCY_KEY: "Any text of the client's own, of up to 255 characters. Of several requests with the "
    "same key within a day the first sends the run, and the others answer its task id.",
}


@dataclass(frozen=True)
class Call:
    """One call of an operation.

    Attributes:
        actor: who calls.
        place: what stands in the braces of the path.
        query: the values of the query, None where there is none.
        body: those of the body, or its object, or the bytes of a file; None: there is none.
        headers: those of the request that the operation looks at, '' for one that isn't there.
        root: the path of the interface, without a slash at its end.
        path: that of the operation below it, with what stands in its braces.
    """

    actor: Actor
    place: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any
    headers: Mapping[str, str]
    root: str
    path: str

    @property
    def app(self) -> Any:
        """The Celery app."""
        return self.actor.app

    def href(self, *names: str) -> str:
        """Return the path of something below the interface's own; names become addresses."""
        return "/".join(["", *map(segment_of, names)])


def etag_of(revision: str) -> str:
    """Return the ETag of a revision; runs don't change it."""
    return f'"{revision}"'
