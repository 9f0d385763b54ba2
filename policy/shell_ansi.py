"""The escapes of a shell's ``$'…'``. Pure."""

from __future__ import annotations

import re
from typing import Final

from policy.shell_words import unreadable

ANSI: Final = re.compile(
    r"x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.)", re.DOTALL
)
"""What may stand after a backslash in such a quote."""
_ANSI_CHARS: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "?": "?",
}


def ansi_char(found: re.Match[str]) -> str:
    """Return the character that an escape stands for; refuse an odd one."""
    digits, octal, control, other = found[1] or found[2] or found[3], found[4], found[5], found[6]
    if control is not None:
        raise unreadable("a control character in a quote")
    if other is not None:
        return _ANSI_CHARS.get(other, f"\\{other}")
    number = int(digits, 16) if digits else int(octal, 8) & 0xFF
    if number == 0 or number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:  # noqa: PLR2004 - Unicode's own limits
        raise unreadable("an odd character in a quote")
    return chr(number)
