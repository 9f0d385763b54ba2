"""The characters of a shell's text: quotes, expansions, here documents, one word at a time. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from policy.shell_ansi import ANSI, ansi_char
from policy.shell_parameters import DEFAULT, PARAMETER, part_of, whole
from policy.shell_words import (
    NAME,
    NUMBER,
    PROCESS,
    QUOTED,
    RefusedCommandError,
    Script,
    Word,
    literal,
    literally,
    opened,
    subscripted,
    substitutes,
    unreadable,
)

MAX_DEPTH: Final = 24
"""How deep substitutions, groups and scripts in scripts may nest."""

_BREAKS: Final = " \t\n;&|()<>"
_PLAIN: Final = re.compile(r"[^ \t\n;&|()<>\\'\"$`]+")
_PLAIN_WITHIN: Final = re.compile(r"[^$`\"'\\\n{}<>]+")
_DELIMITER: Final = re.compile(r"'([^'\n]+)'|\"([^\"\n$`\\]+)\"|(\\?)([A-Za-z0-9_.!%+-]+)")
_COUNTED: Final = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)", re.ASCII
)
"""A name that an arithmetic expression sets."""
_LIKE_A_COMMAND: Final = re.compile(r"(?<!\w)[A-Za-z_]\w*+\s++(?:-+\w|[\w/~.$])")


class Cursor:
    """A place in a text, and what is read from there.

    ``read`` reads the commands at a cursor up to what closes them, and returns what they print.
    """

    def __init__(
        self, text: str, *, posix: bool, depth: int, script: Script, read: Callable[[Cursor, str], Word]
    ) -> None:
        self.text, self.posix, self.depth, self.script, self._read = text, posix, depth, script, read
        self.pos = 0
        self._pending: list[tuple[str, bool, bool, list[Word]]] = []
        self._frozen = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self.pos >= len(self.text)

    @property
    def pending(self) -> bool:
        """Whether a here document begins after this line."""
        return bool(self._pending)

    @property
    def char(self) -> str:
        """The character at the cursor, the empty string at the end."""
        return self.text[self.pos : self.pos + 1]

    def peek(self, text: str) -> bool:
        """Whether ``text`` stands at the cursor."""
        return self.text.startswith(text, self.pos)

    def skip(self, count: int) -> None:
        """Go on by so many characters."""
        self.pos += count

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match a pattern at the cursor, without moving."""
        return pattern.match(self.text, self.pos)

    def sees(self, *texts: str) -> bool:
        """Whether one of the texts stands at the cursor."""
        return any(self.peek(text) for text in texts)

    def takes(self, *texts: str) -> str:
        """Go past the first of the texts that stands at the cursor and return it, else the empty string."""
        for text in texts:
            if self.peek(text):
                self.pos += len(text)
                return text
        return ""

    def keyword(self, word: str) -> bool:
        """Go past ``word`` if it stands at the cursor as a word of its own."""
        return self.keyword_of({word}) is not None

    def keyword_of(self, words: AbstractSet[str]) -> str | None:
        """Go past the one of ``words`` that stands at the cursor as a word of its own, and return it."""
        for word in words:
            after = self.text[self.pos + len(word) : self.pos + len(word) + 1]
            if self.peek(word) and (not after or after in _BREAKS):
                self.pos += len(word)
                return word
        return None

    def process(self) -> bool:
        """Whether a process substitution begins at the cursor."""
        return self.peek("<(") or self.peek(">(")

    def deeper(self) -> None:
        """Go one level down; refuse what nests too deep."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RefusedCommandError("E_LIMIT_COMMAND", f"commands nest deeper than {MAX_DEPTH}")

    def shallower(self) -> None:
        """Come back from one level down."""
        self.depth -= 1

    def blanks(self, *, newlines: bool = False) -> None:
        """Go past blanks, continued lines and a comment, and past ends of lines if asked."""
        while not self.ended:
            if self.char in " \t":
                self.pos += 1
            elif self.peek("\\\n"):
                self._one_line()
                self.pos += 2
            elif self.char == "#":
                end = self.text.find("\n", self.pos)
                self.pos = len(self.text) if end < 0 else end
            elif newlines and self.char == "\n":
                self.newline()
            else:
                return

    def newline(self) -> None:
        """Go past the end of a line, and past the here documents that begin after it."""
        if self._frozen:
            raise unreadable("a here document begins on a line that a substitution continues")
        self.pos += 1
        pending, self._pending = self._pending, []
        for delimiter, quoted, strip, box in pending:
            body = self._body(delimiter, quoted=quoted, strip=strip)
            box.append(literal(body) if quoted else self._expanded(body))

    def finish(self) -> None:
        """Refuse a here document that has no text."""
        if self._pending:
            raise unreadable("a here document has no text")

    def word(self) -> Word:
        """Read one word; refuse where none begins."""
        start, parts = self.pos, list[Word]()
        while not self.ended:
            char = self.char
            if self.process():
                if self.posix:
                    raise unreadable("a process substitution is not known to every shell")
                self.pos += 2
                self._substitution(")")
                parts.append(opened(PROCESS))
            elif char in _BREAKS:
                break
            elif char == "\\":
                parts.append(self._escaped())
            elif char == "'":
                parts.append(self._single())
            elif char == '"':
                parts.append(self._double())
            elif char == "$":
                parts.append(self._dollar(quoted=False))
            elif char == "`":
                parts.append(self._backtick(quoted=False))
            else:
                plain = self.match(_PLAIN)
                run = char if plain is None else plain[0]
                parts.append(Word(run, run))
                self.pos += len(run)
        if self.pos == start:
            raise unreadable("a word is expected")
        return _joined(parts)

    def plain_word(self) -> str:
        """Read one word in which nothing is quoted or expands, and return it."""
        word = self.word()
        if word.shape != word.text:
            raise unreadable("a name is quoted or expands")
        return word.text

    def here_document(self, *, strip: bool) -> list[Word]:
        """Read the delimiter of a here document; the list gets the document's text when its line ends."""
        found = self.match(_DELIMITER)
        after = "" if found is None else self.text[found.end() : found.end() + 1]
        if found is None or (after and after not in _BREAKS):
            raise unreadable("a here document has an odd delimiter")
        self.pos = found.end()
        box: list[Word] = []
        delimiter = found[1] or found[2] or found[4]
        self._pending.append((delimiter, not found[4] or bool(found[3]), strip, box))
        return box

    def arithmetic(self, opening: int) -> None:
        """Go past ``((…))``, reading what it expands; ``opening`` is the length of its opening."""
        self.pos += opening
        self.script.evaluates = True
        depth, plain = 1, list[str]()
        while depth:
            if self.ended or self.char in "'\"\\":
                raise unreadable("an arithmetic expression is not closed, or quotes within")
            if self.char == "$":
                self._dollar(quoted=True)
                plain.append("0")
            elif self.char == "`":
                self._backtick(quoted=True)
                plain.append("0")
            else:
                plain.append(self.char)
                depth += {"(": 1, ")": -1}.get(self.char, 0)
                if self.char == "\n":
                    self._one_line()
                self.pos += 1
        if not self.takes(")"):
            raise unreadable("two parentheses open where one may be meant")
        # Where a shell takes the two for groups, what is in them is a command.
        for name in _COUNTED.findall("".join(plain)):
            self.script.values.setdefault("".join(name), []).append(opened())
        if _LIKE_A_COMMAND.search("".join(plain)):
            raise unreadable("an arithmetic expression reads like a command")

    def expansions(self) -> Word:
        """Read the rest of the text as one quoted word in which quotes mean nothing."""
        parts: list[Word] = []
        while not self.ended:
            parts.append(self._within("$`\\"))
        return _joined(parts)

    def _one_line(self) -> None:
        if self._pending or self._frozen:
            raise unreadable("a line goes on although a here document begins after it")

    def _escaped(self) -> Word:
        if self.pos + 1 >= len(self.text):
            raise unreadable("the command line ends with a backslash")
        if self.peek("\\\n"):
            raise unreadable("a line is continued within a word")
        self.pos += 2
        return Word(self.text[self.pos - 1], QUOTED)

    def _single(self) -> Word:
        end = self.text.find("'", self.pos + 1)
        if end < 0:
            raise unreadable("a quote is not closed")
        text = self.text[self.pos + 1 : end]
        if "\n" in text:
            self._one_line()
        self.pos = end + 1
        return literal(text)

    def _double(self) -> Word:
        self.pos += 1
        parts: list[Word] = []
        while not self.takes('"'):
            if self.ended:
                raise unreadable("a quote is not closed")
            if self.char == "\n":
                self._one_line()
            parts.append(self._within('$`"\\'))
        return _joined(parts)

    def _within(self, escapable: str) -> Word:
        """Read one piece of a quoted text."""
        char, after = self.char, self.text[self.pos + 1 : self.pos + 2]
        if char == "$":
            return self._dollar(quoted=True)
        if char == "`":
            return self._backtick(quoted=True)
        if char == "\\" and after == "\n":
            self._one_line()
            self.pos += 2
            return literal("")
        if char == "\\" and after and after in escapable:
            self.pos += 2
            return literal(after)
        plain = self.match(_PLAIN_WITHIN)
        run = char if plain is None else plain[0]
        self.pos += len(run)
        return literal(run)

    def _dollar(self, *, quoted: bool) -> Word:
        if self.peek("$(("):
            self.arithmetic(3)
            return opened(NUMBER)
        if self.peek("$("):
            self.pos += 2
            return self._substitution(")")
        if self.peek("${"):
            return self._parameter(quoted=quoted)
        if self.peek("$[") or self.peek("$\\\n"):
            raise unreadable("an expansion is written in an odd way")
        self.pos += 1
        if not quoted and self.char and self.char in "'\"":
            if self.posix:
                raise unreadable("a dollar before a quote is not known to every shell")
            return self._ansi() if self.char == "'" else self._double()
        name = self.match(NAME)
        if name is not None:
            self.pos = name.end()
            return opened(f"${{{name[0]}}}")
        if self.char and self.char in "0123456789@*#?$!-":
            self.pos += 1
            return opened(NUMBER if self.text[self.pos - 1] in "#?$" else "${…}")
        return literal("$")

    def _parameter(self, *, quoted: bool) -> Word:
        self.pos += 2
        found = self.match(PARAMETER)
        if found is None:
            raise unreadable("an expansion is written in an odd way")
        if found[1] == "!" and not (found[3] in {"[@]", "[*]"} and self.text.startswith("}", found.end())):
            raise unreadable("an expansion takes its name from a value")
        if found[3]:
            self.script.evaluates = True
        if self.text.startswith("}", found.end()):
            self.pos = found.end() + 1
            return opened(whole(found))
        self.pos = found.end()
        if self.peek("@"):
            raise unreadable("an expansion transforms its value")
        if self.sees("=", ":="):
            self.script.values.setdefault(found[2], []).append(opened())
            self.script.named.append(found[2])
        part = part_of(found, self.text[self.pos : self.pos + len("##*/}")])
        default = self.takes(":-") if self.match(DEFAULT) else ""
        inner, index = list[Word](), self.peek("[")
        self.script.evaluates |= index or (self.peek(":") and not self.sees(":-", ":=", ":?", ":+"))
        self.deeper()
        while not self.takes("}"):
            if self.ended or self.char == "{" or self.process() or (quoted and self.char in "'\""):
                raise unreadable("an expansion is not closed, or holds braces or quotes")
            if self.char == "\n":
                self._one_line()
            if self.char == "'":
                inner.append(self._single())
            elif self.char == '"':
                inner.append(self._double())
            elif self.char == "\\" and not quoted:
                inner.append(self._escaped())
            else:
                inner.append(self._within('$`"\\}'))
        self.shallower()
        text = literally(_joined(inner))
        if substitutes(text) or subscripted(text) or (index and "$" in text):
            raise unreadable("an expansion holds what bash would expand once more")
        return opened(f"${{{found[2]}:-{text}}}" if default else part)

    def _substitution(self, closer: str) -> Word:
        outer, self._pending = self._pending, []
        frozen = bool(outer)
        self._frozen += frozen
        word = self._read(self, closer)
        self.finish()
        self._pending = outer
        self._frozen -= frozen
        return word

    def _backtick(self, *, quoted: bool) -> Word:
        inner: list[str] = []
        self.pos += 1
        while not self.takes("`"):
            if self.ended or (quoted and self.peek('\\"')):
                raise unreadable("a backtick is not closed, or quotes within")
            if self.char == "\n":
                self._one_line()
            if self.char == "\\" and self.text[self.pos + 1 : self.pos + 2] in {"`", "\\", "$"}:
                self.pos += 1
            inner.append(self.char)
            self.pos += 1
        return self._read(self._within_text("".join(inner)), "")

    def _ansi(self) -> Word:
        self.pos += 1
        parts: list[str] = []
        while not self.takes("'"):
            if self.ended or self.peek("\\'"):
                raise unreadable("a quote is not closed, or escaped within a quote")
            if self.char == "\n":
                self._one_line()
            if self.char != "\\":
                parts.append(self.char)
                self.pos += 1
                continue
            self.pos += 1
            found = self.match(ANSI)
            if found is None:
                raise unreadable("a quote is not closed")
            self.pos = found.end()
            parts.append(ansi_char(found))
        return literal("".join(parts))

    def _body(self, delimiter: str, *, quoted: bool, strip: bool) -> str:
        lines: list[str] = []
        while not self.ended:
            line, joined = self._line(), False
            while not quoted and _continues(line) and not self.ended:
                more, joined = self._line(), True
                if more.lstrip("\t") == delimiter:
                    raise unreadable("a here document continues the line before its end")
                line = line[:-1] + more
            if (line.lstrip("\t") if strip else line) == delimiter:
                if joined:
                    raise unreadable("the end of a here document is a continued line")
                return "".join(f"{one}\n" for one in lines)
            lines.append(line)
        raise unreadable("a here document is not closed")

    def _line(self) -> str:
        end = self.text.find("\n", self.pos)
        end = len(self.text) if end < 0 else end
        line = self.text[self.pos : end]
        self.pos = end + 1
        return line

    def _expanded(self, body: str) -> Word:
        """Read the expansions of a here document whose delimiter is not quoted."""
        return self._within_text(body).expansions()

    def _within_text(self, text: str) -> Cursor:
        return Cursor(text, posix=self.posix, depth=self.depth + 1, script=self.script, read=self._read)


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _joined(parts: list[Word]) -> Word:
    return Word("".join(part.text for part in parts), "".join(part.shape for part in parts))
