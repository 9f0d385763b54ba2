"""`${params.name}` and `${task}` in the texts of a flow; `$${` stands for `${` itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_TOKEN = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<inside>[^{}\n]*)(?P<close>\})?")
_PARAM = re.compile(r"params\.(?P<name>[a-z][a-z0-9_-]*)")
TASK = "task"
PARAM_PREFIX = "params."


def placeholders(text: str) -> Iterator[str]:
    """Yield what stands inside each `${…}`: `task`, `params.<name>`, or anything else people wrote."""
    for match in _TOKEN.finditer(text):
        if not match["escape"]:
            yield match["inside"] if match["close"] else f"{match['inside']} (never closed)"


def param_name(inside: str) -> str | None:
    """Return the parameter's name if `inside` is `params.<name>`, else None."""
    match = _PARAM.fullmatch(inside)
    return match["name"] if match else None


def sole_param(text: str) -> str | None:
    """Return the parameter's name if the whole text is `${params.<name>}`, else None."""
    match = _TOKEN.fullmatch(text)
    return param_name(match["inside"]) if match and match["close"] else None


def fill(text: str, value: Callable[[str], str]) -> str:
    """Replace each placeholder by `value(inside)`, in one pass: values are not looked at again."""

    def _replacement(match: re.Match[str]) -> str:
        return "${" if match["escape"] else value(match["inside"])

    return _TOKEN.sub(_replacement, text)
