"""What others wrote, made harmless: text for a terminal, words for a shell. Pure."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Sequence
from typing import Final

_SUSPECT: Final = re.compile(r"[^\t\n -~]")
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"})
"""Characters that move a cursor, turn the direction of a line, or are not seen at all."""
_LONE: Final = range(0xDC80, 0xDD00)
"""Half characters that stand for bytes which are no UTF-8."""
_BMP: Final = 0xFFFF


def visible(text: str) -> str:
    r"""Return a text in which everything can be seen and nothing takes effect; lines and tabs stay.

    What cannot be seen is written as JSON writes it (``\u001b``), so that JSON stays JSON.
    """
    return _SUSPECT.sub(_escape, text)


def typed(argv: Sequence[str]) -> str:
    """Return a command as a person types it into bash or zsh: of printable characters, whatever the words hold."""
    return " ".join(quoted(word) for word in argv)


def quoted(word: str) -> str:
    """Return one word of such a command."""
    if not any(unicodedata.category(char) in _UNSEEN for char in word):
        return shlex.quote(word)
    return "$'" + "".join(_in_dollar_quotes(char) for char in word) + "'"


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if unicodedata.category(char) not in _UNSEEN:
        return char
    return "".join(
        f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le", "surrogatepass")).cast("H")
    )


def _in_dollar_quotes(char: str) -> str:
    code = ord(char)
    if char in "\\'":
        return f"\\{char}"
    if unicodedata.category(char) not in _UNSEEN:
        return char
    if code < 0x80 or code in _LONE:  # noqa: PLR2004 - ASCII; else the byte that the half character stands for
        return f"\\x{code & 0xFF:02x}"
    return f"\\U{code:08x}" if code > _BMP else f"\\u{code:04x}"
