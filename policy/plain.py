"""What others wrote, made harmless: text for a terminal or for Markdown, words for a shell. Pure."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Sequence
from typing import Final

_SUSPECT: Final = re.compile(r"[^\t\n -~]")
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"})
"""Characters that move a cursor, turn the direction of a line, or are not seen at all."""
_MARKUP: Final = re.compile(r"[\\`\[\]<|]")


def visible(text: str) -> str:
    r"""Return a text in which everything can be seen and nothing takes effect; lines and tabs stay.

    What cannot be seen is written as JSON writes it (``\u001b``), so that JSON stays JSON.
    """
    return _SUSPECT.sub(_escape, text)


def inline(text: str, limit: int = 1_000) -> str:
    """Return a text as one line of Markdown that is only read: no link, picture, tag, code or cell begins in it."""
    line = _one_line(text)
    return _MARKUP.sub(r"\\\g<0>", line if len(line) <= limit else f"{line[: limit - 1]}…")


def code(text: str, limit: int = 300) -> str:
    """Return a text as code within a line of Markdown, out of which it cannot break."""
    return f"`{_one_line(text)[:limit].replace('`', chr(39))}`"


def _one_line(text: str) -> str:
    return " ".join(visible(text).split())


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
    # quotes and marks as numbers, too: an interactive shell looks for them before it looks for quotes
    if unicodedata.category(char) not in _UNSEEN and char not in "\\'!":
        return char
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", errors))
