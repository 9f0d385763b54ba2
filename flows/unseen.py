"""Characters that make a text read otherwise than it is: no flow and no persona may hold them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flows.findings import Fault, PathInFile

_UNSEEN = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
MEND = "remove it: who reads the file would not see what an agent is told"


def unseen(text: str) -> tuple[int, str] | None:
    """Return the line (from 0) and the name of the first character that turns or hides text, None without one."""
    found = _UNSEEN.search(text)
    return None if found is None else (text.count("\n", 0, found.start()), f"U+{ord(found[0]):04X}")


def unseen_faults(data: object) -> Iterator[Fault]:
    """Yield a fault for every key and value that holds such a character, written by an escape for instance."""
    stack: list[tuple[PathInFile, object]] = [((), data)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack.extend(((*path, key), one) for key, one in value.items())
            stack.extend(((*path, key), key) for key in value)
        elif isinstance(value, list):
            stack.extend(((*path, index), one) for index, one in enumerate(value))
        elif isinstance(value, str) and (found := unseen(value)) is not None:
            yield Fault(path, "yaml_syntax", f"character {found[1]} turns or hides text", MEND)
