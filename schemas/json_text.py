"""JSON that somebody else wrote: an agent, a person, a file that was tampered with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

_HALF: Final = re.compile(r"[\ud800-\udfff]")
_MAY_BE_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse_json(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON text. Raises ValueError for whatever is none, also for what is nested too deeply.

    Half a surrogate pair, which JSON can write and UTF-8 cannot, becomes U+FFFD, as the agents' programs have it: what
    is judged is what is run.
    """
    try:
        value = json.loads(text, parse_constant=parse_constant)
        written = text if isinstance(text, str) else text.decode("latin-1")
        return _whole(value) if _MAY_BE_HALF.search(written) else value
    except RecursionError:
        message = "it is nested too deeply"
        raise ValueError(message) from None


def _whole(value: Any) -> Any:
    match value:
        case str():
            return _HALF.sub("\ufffd", value)
        case list():
            return [_whole(one) for one in value]
        case dict():
            return {_whole(name): _whole(one) for name, one in value.items()}
        case _:
            return value
