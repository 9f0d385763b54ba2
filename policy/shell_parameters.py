"""What stands for ``${…}``: a name, the number of what it holds, all of an array, a part of a value, a default. Pure."""

from __future__ import annotations

import re
from typing import Final

from policy.shell_words import NAME, NUMBER

PARAMETER: Final = re.compile(r"([!#]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[\w@*$-]*\])?", re.ASCII)
"""How an expansion in braces begins: a mark before the name, the name, a subscript."""
DEFAULT: Final = re.compile(r":-[\w./@]+\}", re.ASCII)
"""A default that is itself wherever it is expanded, with the end of the expansion."""
_UNKNOWN: Final = "${…}"


def whole(found: re.Match[str]) -> str:
    """Return the text for an expansion that has nothing after the name."""
    if found[1] == "#":
        return NUMBER
    if found[1] or (found[3] and found[3] not in {"[@]", "[*]"}) or NAME.fullmatch(found[2]) is None:
        return _UNKNOWN
    return f"${{{found[2]}[]}}" if found[3] else f"${{{found[2]}}}"


def part_of(found: re.Match[str], after: str) -> str:
    """Return the text for what is left of a value without its end or its beginning."""
    if found[1] or found[3] or NAME.fullmatch(found[2]) is None:
        return _UNKNOWN
    if after == "##*/}":
        return f"${{{found[2]}/}}"
    return f"${{{found[2]}{after[:1]}}}" if after[:1] in {"%", "#"} else _UNKNOWN
