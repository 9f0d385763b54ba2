"""What is certain at a place of a shell's text: which names have been set by then, and what a pipe brings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from policy.shell_words import ASSIGNED, DECLARING, Command, Script, unreadable

_CLOSED_BY: Final = {"fi": ("if",), "done": ("while", "until", "for", "select")}
_EVERYWHERE: Final = frozenset({"export", "readonly"})
"""Builtins with assignments that every shell has."""
_PIPES: Final = frozenset({"|", "|&"})


def certainly(command: Command, *, posix: bool) -> frozenset[str]:
    """Return the names that a command certainly sets, if it is not one that something may keep from it."""
    words, assignments = command.words, command.assignments
    if command.redirects:
        return frozenset()
    if not words:
        sure = all(value.expanded is not None for _, value in assignments)
        return frozenset(name for name, _ in assignments) if sure else frozenset()
    if words[0].text not in (_EVERYWHERE if posix else DECLARING - {"local"}) or assignments:
        return frozenset()
    begun = [ASSIGNED.match(word.shape) for word in words[1:]]
    sure = all(word.expanded is not None for word in words) and all(begun)
    return frozenset(one[1] for one in begun if one is not None) if sure else frozenset()


@dataclass
class _Block:
    """A compound command that is not closed yet, and where the list around it stood."""

    kind: str
    before: frozenset[str]
    begun: frozenset[str]
    first: frozenset[str] | None
    piped: bool
    either: bool
    ends: list[frozenset[str]] = field(default_factory=list)
    otherwise: bool = False
    reads: frozenset[str] = frozenset()
    """What the condition of a loop reads, so that it is set wherever the loop goes on."""


class Flow:
    """One list of commands as it is read: what has certainly run when the next of them begins."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._begun = script.sure
        """What was sure before the list of ``&&`` and ``||`` that is read."""
        self._first: frozenset[str] | None = None
        """What was sure after its first command, None as long as that is read."""
        self._either = False
        self._sets = frozenset[str]()
        self._piped = False
        self._blocks: list[_Block] = []
        self._brought: list[Command] | None = []
        self._line: list[Command] | None = []
        self._lines = 0
        self._looping = False

    @property
    def brought(self) -> Sequence[Command]:
        """The simple commands whose output the next command reads by a pipe; none where that is not certain."""
        return self._brought or ()

    @property
    def pipeline(self) -> Sequence[Command]:
        """The commands that were read if they are one pipeline of simple ones, else none."""
        return self._line or () if self._lines == 1 else ()

    def simple(self, command: Command, sets: frozenset[str], reads: frozenset[str]) -> None:
        """Note a simple command: what it sets if it runs in this shell, and what if it succeeds."""
        if self._looping:
            self._blocks[-1].reads = reads
        self._looping = False
        self._lines += not self._brought
        self._line = None if self._brought is None else [*self._brought, command]
        self._sets = sets

    def compound(self) -> None:
        """Note a command that is made of others."""
        self._lines, self._line = self._lines + 2, None

    def settle(self, *, beside: bool) -> None:
        """Note that the last command has ended; ``beside`` says that it ran in a shell of its own, or not yet."""
        if not (beside or self._piped):
            self._script.sure |= self._sets
        self._sets = frozenset()

    def operator(self, operator: str) -> None:
        """Go on after an operator or the end of a line."""
        if operator in {"||", "|", "|&", "&"} and self._blocks:
            self._blocks[-1].reads = frozenset()
        if operator in _PIPES:
            self._piped = True
            self._brought = self._line if operator == "|" else None
            return
        self._piped, self._brought = False, []
        first = self._script.sure if self._first is None else self._first
        if operator in {"&&", "||"}:
            # After an ``||`` nothing says which of the commands ran.
            self._either = self._either or operator == "||"
            self._first = first
            self._script.sure = first if self._either else self._script.sure
        else:
            self._restart(self._begun if operator == "&" else first)

    def glue(self, word: str, *names: str) -> None:
        """Go on after a word that begins, divides or ends a compound command; a loop sets ``names``."""
        self._looping = word == "while"
        if word in {"if", "while", "until", "for", "select"}:
            self._blocks.append(
                _Block(word, self._script.sure, self._begun, self._first, self._piped, self._either)
            )
            self._piped = False
            self._restart(self._script.sure | set(names))
        elif word == "do" and self._blocks and self._blocks[-1].kind != "for":
            block = self._blocks[-1]
            self._restart(block.before | block.reads)
        elif word in {"elif", "else"}:
            block = self._open("if")
            block.ends.append(self._script.sure)
            block.otherwise = word == "else"
            self._restart(block.before)
        elif word in _CLOSED_BY:
            block = self._open(*_CLOSED_BY[word])
            ends = [*block.ends, self._script.sure]
            self._blocks.pop()
            self._script.sure, self._begun, self._first = block.before, block.begun, block.first
            self._piped, self._either = block.piped, block.either
            self.compound()
            self._sets = frozenset.intersection(*ends) if block.otherwise else frozenset()

    def _restart(self, sure: frozenset[str]) -> None:
        self._script.sure = self._begun = sure
        self._first, self._either = None, False

    def _open(self, *kinds: str) -> _Block:
        if not self._blocks or self._blocks[-1].kind not in kinds:
            raise unreadable("a word of the shell's own closes nothing")
        return self._blocks[-1]
