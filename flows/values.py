"""Values of parameters: which fit which type, and how they read as text."""

from __future__ import annotations

from typing import Literal, assert_never

from schemas.flow import Scalar

ParamType = Literal["string", "integer", "number", "boolean", "argv"]
Value = Scalar | list[str]

EXAMPLES: dict[ParamType, str] = {
    "string": 'a text, as in "main"',
    "integer": "a whole number, as in 5",
    "number": "a number, as in 0.5",
    "boolean": "true or false",
    "argv": "a list of words, as in [make, test]",
}
"""What a value of each type looks like."""


def fits(kind: ParamType, value: object) -> bool:
    """Return whether a value is of a parameter's type; true and false are no numbers."""
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "argv":
            return isinstance(value, list) and all(isinstance(word, str) for word in value)
        case _:
            assert_never(kind)


def as_text(value: Scalar) -> str:
    """Return a value as it reads inside a text; booleans are `true` and `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
