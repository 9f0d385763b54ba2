"""How a Claude agent hands a structured answer in: by calling one of our tools, judged before it counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel

from schemas.handoff import HandoffDraft
from schemas.routing import RoutingSignal
from transports.claude_policy import SERVER
from transports.structured import MAX_REPROMPTS, AnswerRefused, read_answer

TOOLS: Final[Mapping[str, tuple[type[BaseModel], str]]] = MappingProxyType(
    {
        "finalize": (
            HandoffDraft,
            "Hand in how the step went. Call it only when you are asked to, and once.",
        ),
        "route": (RoutingSignal, "Hand in where to go next. Call it only when you are asked to, and once."),
    }
)
"""The tools, each with the schema of its arguments and what the model reads of it. They are the same in every turn."""


def tool_for(schema: type[BaseModel]) -> str | None:
    """Return the full name of the tool that takes values of a schema; None where there is none."""
    return next(
        (f"mcp__{SERVER}__{name}" for name, (known, _) in TOOLS.items() if issubclass(schema, known)), None
    )


NAMES: Final = frozenset(f"mcp__{SERVER}__{name}" for name in TOOLS)
"""Their full names."""


@dataclass
class HandIn:
    """What is waited for: a value of ``schema`` by ``tool``; ``tries`` counts what was refused."""

    tool: str
    schema: type[BaseModel]
    value: dict[str, Any] | None = None
    tries: int = 0
    errors: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether no other try is to be made."""
        return self.value is not None or self.tries > MAX_REPROMPTS

    def take(self, arguments: Mapping[str, Any]) -> str | None:
        """Take a value; return why it is refused, or None if it is taken."""
        return self.take_text(json.dumps(arguments, ensure_ascii=False))

    def take_text(self, text: str) -> str | None:
        """Take a value that was written as text; return why it is refused, or None if it is taken."""
        try:
            self.value = read_answer(text, self.schema)
        except AnswerRefused as refused:
            self.tries += 1
            self.errors = refused.errors
            return "\n".join(f"- {error}" for error in refused.errors)
        return None
