"""What a model says in a test, in one language for all providers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Say:
    """Text; it comes in ``pieces`` pieces."""

    text: str
    pieces: int = 1


@dataclass(frozen=True)
class Think:
    """A thought; it comes in ``pieces`` pieces."""

    text: str
    pieces: int = 1


@dataclass(frozen=True)
class Write:
    """A file written with the agent's own tool for it; ``path`` is relative to the workspace.

    The call comes in ``pieces`` pieces where the protocol has any.
    """

    path: str
    content: str
    pieces: int = 1


@dataclass(frozen=True)
class Read:
    """A file read with the agent's own tool for it, or with ``cat`` where it has none."""

    path: str


@dataclass(frozen=True)
class Edit:
    """The whole lines ``old`` of a file replaced by ``new`` with the agent's own tool for it."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Run:
    """A command run with the agent's own tool for it."""

    command: str


@dataclass(frozen=True)
class Ask:
    """A question asked with the agent's own tool for it."""

    question: str
    options: tuple[str, ...] = ()
    multi_select: bool = False


@dataclass(frozen=True)
class Call:
    """Any other tool, by the name it has on the wire."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HandIn:
    """The value that was asked for, in the way the agent hands values in: by a tool, or as its whole text."""

    value: Mapping[str, Any]


Part = Say | Think | Read | Write | Edit | Run | Ask | Call | HandIn


@dataclass(frozen=True)
class Tokens:
    """What one answer is said to have used."""

    input: int = 100
    cached: int = 0
    output: int = 10


End = Literal["done", "no_room", "refused"]


@dataclass(frozen=True)
class Turn:
    """One answer of the model: texts and tool calls, several of which are parallel.

    ``end`` is why the model stopped: it was done, had no room for more, or would not say more. ``pace_s`` is waited
    between two events of the stream. After ``cut_after`` events the connection is closed; after ``hang_after`` nothing
    comes any more until the client goes away or the server ends; where it is ``kept_alive``, nothing but what the
    protocol has to keep a silent connection open.
    """

    parts: tuple[Part, ...]
    tokens: Tokens = Tokens()
    end: End = "done"
    pace_s: float = 0.0
    cut_after: int | None = None
    hang_after: int | None = None
    kept_alive: bool = False


@dataclass(frozen=True)
class Refuse:
    """An HTTP error, in the provider's own words; ``retry_after`` in seconds, as header."""

    status: int
    retry_after: float | None = None


@dataclass(frozen=True)
class Garbage:
    """A stream that is none of the protocol."""

    body: bytes


Reply = Turn | Refuse | Garbage


@dataclass(frozen=True)
class Called:
    """A tool call in the conversation, with its result once there is one."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    result: str | None = None
    failed: bool = False


@dataclass(frozen=True)
class Seen:
    """What a client asked, whatever its protocol: the model answers by this alone.

    ``texts`` are (role, text) pairs in their order, roles ``user``, ``assistant`` and ``system``; ``tools`` are the
    names of the declared tools; ``schema`` is the JSON Schema the whole answer is to have, if one was asked for;
    ``raw`` is the request itself; ``streams`` says that the answer is to come as a stream, not as one body.
    """

    model: str
    system: str
    texts: tuple[tuple[str, str], ...]
    calls: tuple[Called, ...]
    tools: tuple[str, ...]
    schema: Mapping[str, Any] | None
    raw: Mapping[str, Any]
    headers: Mapping[str, str]
    streams: bool = True

    @property
    def asked(self) -> str:
        """The last words of the user."""
        return next((text for role, text in reversed(self.texts) if role == "user"), "")


Mind = Callable[[Seen], Reply]
"""Answers a request; called from the threads of a server, one call at a time."""


def pieces(text: str, part: Part) -> list[str]:
    """Return the pieces in which the text of a part comes; none for an empty one."""
    number = part.pieces if isinstance(part, Say | Think | Write) else 1
    size = max(1, -(-len(text) // number))
    return [text[at : at + size] for at in range(0, len(text), size)]


def turn(*parts: Part | str, **more: Any) -> Turn:
    """Return a turn; plain texts stand for Say."""
    return Turn(tuple(Say(part) if isinstance(part, str) else part for part in parts), **more)


def in_order(*replies: Reply) -> Mind:
    """Return a mind that gives these replies one after the other, and then only says that it is done."""
    left = list(replies)
    lock = threading.Lock()

    def answer(_: Seen) -> Reply:
        with lock:
            return left.pop(0) if left else turn("Done.")

    return answer
