"""A shell's text as the simple commands in it, however deep they stand. Pure, and closed: what is not certain is refused.

It reads bash and POSIX sh. It does not build a tree: structure only matters where it decides what is a command and what
is data. Where shells differ, or a text is legal but obscure, it refuses rather than guesses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from policy.command_printed import listed_name, printed
from policy.shell_chars import Cursor
from policy.shell_evaluated import again, check_evaluated
from policy.shell_flow import Flow, certainly
from policy.shell_words import (
    ARRAY,
    ASSIGNED,
    DECLARING,
    GIVEN,
    NAME,
    WIDE,
    Command,
    Redirect,
    RefusedCommandError,
    Script,
    Word,
    base_name,
    braces,
    literal,
    literally,
    one_of,
    opened,
    subscripted,
    unreadable,
)

MAX_COMMANDS: Final = 256
"""Simple commands in one text, nested ones included; more are refused, not skipped."""

_FUNCTION: Final = re.compile(r"[^\s$`'\"\\/(){}<>|&;*?\[~=-][^\s$`'\"\\/(){}<>|&;*?\[~=]*")
_REDIRECT: Final = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>>|>\||>&|<|>)|(&>>|&>)")
_OPERATORS: Final = ("&&", "||", "|&", ";", "|", "&")
_ITEM_ENDS: Final = (";;&", ";;", ";&")
_GLUE: Final = frozenset({"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "!"})
_LOOPS: Final = frozenset({"for", "select"})
_MISPLACED: Final = frozenset({"coproc", "}", "esac", "in", "]]"})
RESERVED: Final = frozenset({*_GLUE, *_LOOPS, *_MISPLACED, "{", "[[", "case", "function", "time"})
"""Words of the shell's own; one that was read as a program's name was written so that it would be."""
_BASH_ONLY: Final = frozenset({"[[", "((", "select", "function"})
_KEEPING: Final = frozenset(
    {
        *DECLARING,
        ":",
        ".",
        "source",
        "eval",
        "exec",
        "exit",
        "return",
        "set",
        "shift",
        "times",
        "trap",
        "unset",
        "break",
    }
    | {"continue", "cd", "pushd", "popd"}
)
"""Builtins before which an assignment lasts in some shells, or decides what the builtin does to this shell."""
_WAITING: Final = "&&", "||", "|", "|&"


def read_script(text: str, *, posix: bool = False, depth: int = 0) -> Script:
    """Return every simple command of ``text``; raise RefusedCommandError when it cannot be read with certainty.

    ``posix`` says that sh runs it: what only bash knows is refused, since sh would take it for something else.
    """
    script = Script()
    _Reader(Cursor(text, posix=posix, depth=depth, script=script, read=_read)).commands("")
    check_evaluated(script)
    return script


def _read(at: Cursor, closer: str) -> Word:
    return printed(_Reader(at).commands(closer))


class _Reader:
    """Reads commands at a cursor, adding each to the script."""

    def __init__(self, cursor: Cursor) -> None:
        self.at = cursor
        self.script = cursor.script
        self._flow = Flow(self.script)

    def commands(self, closer: str) -> Sequence[Command]:
        """Read commands up to ``closer`` (a parenthesis, a brace, the end of a case item, or the end of the text).

        Return them if they are one pipeline of simple commands.
        """
        at, outer, sure = self.at, self._flow, self.script.sure
        self._flow = Flow(self.script)
        at.deeper()
        needed, seen = False, False
        while True:
            at.blanks(newlines=not seen or needed)
            # A here document stands before the command that reads it has run.
            self._flow.settle(beside=at.pending or (at.sees("|", "&") and not at.sees("||", "&&")))
            if at.ended:
                if closer or needed:
                    raise unreadable("the command line ends before it is complete")
                at.finish()
                break
            if at.peek("\n"):
                at.newline()
                self._flow.operator("\n")
                seen = False
                continue
            if closer == "esac" and at.sees(*_ITEM_ENDS):
                if needed:
                    raise unreadable("an operator has no command after it")
                break
            if at.peek(")"):
                if closer != ")" or needed:
                    raise unreadable("a parenthesis closes nothing")
                at.skip(1)
                break
            if at.match(_REDIRECT) is None and (operator := at.takes(*_OPERATORS)):
                if not seen or needed or (at.posix and operator == "|&"):
                    raise unreadable("an operator has no command before it")
                self._flow.operator(operator)
                needed = operator in _WAITING
                seen = needed
                continue
            if self._closes(closer):
                if needed:
                    raise unreadable("an operator has no command after it")
                break
            self._command()
            needed, seen = False, True
        at.shallower()
        found, self._flow, self.script.sure = self._flow.pipeline, outer, sure
        return found

    def _closes(self, closer: str) -> bool:
        wanted = {"}": "}", "esac": "esac"}.get(closer, "")
        return bool(wanted) and self.at.keyword(wanted)

    def _command(self) -> None:
        at = self.at
        if at.peek("(("):
            self._bash_only("((")
            at.arithmetic(2)
            self._flow.compound()
        elif at.peek("("):
            at.skip(1)
            self.commands(")")
            self._flow.compound()
        elif at.keyword("{"):
            self.commands("}")
            self._flow.compound()
        elif (glue := at.keyword_of(_GLUE)) is not None:
            self._flow.glue(glue)
        elif not at.posix and at.keyword("time"):
            at.blanks()
            while at.keyword("-p") or at.keyword("--"):
                at.blanks()
        elif (kind := at.keyword_of(_LOOPS)) is not None:
            self._loop(kind)
        elif at.keyword("case"):
            self._case()
            self._flow.compound()
        elif at.keyword("function"):
            self._bash_only("function")
            at.blanks()
            self._function(at.plain_word())
        elif at.keyword("[["):
            self._bash_only("[[")
            self._condition()
            self._flow.compound()
        elif at.keyword_of(_MISPLACED) is not None:
            raise unreadable("a word of the shell's own stands where a command is expected")
        else:
            self._simple()

    def _bash_only(self, what: str) -> None:
        if self.at.posix and what in _BASH_ONLY:
            raise unreadable(f"{what} is not known to every shell")

    def _loop(self, kind: str) -> None:
        at = self.at
        self._bash_only(kind)
        at.blanks()
        if at.peek("(("):
            self._bash_only("((")
            at.arithmetic(2)
            self._flow.glue(kind)
            return
        name = at.plain_word()
        if NAME.fullmatch(name) is None:
            raise unreadable(f"{kind} has no name after it")
        self.script.named.append(name)
        at.blanks(newlines=True)
        if not at.keyword("in"):
            self.script.values.setdefault(name, []).append(opened())
            self._flow.glue(kind)
            return
        while True:
            at.blanks()
            if at.ended or at.peek("\n") or at.peek(";"):
                self._flow.glue(kind, name)
                return
            listed = at.sees("$(", "`")
            for word in braces(at.word()):
                self.script.first.setdefault(name, len(self.script.commands))
                one = one_of(word) if listed else word
                self.script.values.setdefault(name, []).append(self._now(one))

    def _case(self) -> None:
        at = self.at
        at.deeper()
        at.blanks()
        at.word()
        at.blanks(newlines=True)
        if not at.keyword("in"):
            raise unreadable("case has no in")
        while True:
            at.blanks(newlines=True)
            if at.keyword("esac"):
                break
            self._patterns()
            self.commands("esac")
            if not at.takes(*_ITEM_ENDS):
                break
        at.shallower()

    def _patterns(self) -> None:
        at = self.at
        if at.peek("("):
            at.skip(1)
        while True:
            at.blanks()
            at.word()
            at.blanks()
            if at.takes(")"):
                return
            if not at.takes("|"):
                raise unreadable("a pattern of case is not closed")

    def _function(self, name: str) -> None:
        at = self.at
        if _FUNCTION.fullmatch(name) is None:
            raise unreadable("a function has an odd name")
        at.blanks()
        if at.takes("("):
            at.blanks()
            if not at.takes(")"):
                raise unreadable("a function has something between its parentheses")
        at.blanks(newlines=True)
        start = len(self.script.commands)
        if at.keyword("{"):
            self.commands("}")
        elif at.peek("(") and not at.peek("(("):
            at.skip(1)
            self.commands(")")
        else:
            raise unreadable("a function has no body in braces")
        self.script.functions.setdefault(name, []).append((start, len(self.script.commands)))

    def _condition(self) -> None:
        """Read ``[[ … ]]``, of which only what it expands can run anything."""
        at = self.at
        self.script.evaluates = True
        while True:
            at.blanks(newlines=True)
            if at.ended:
                raise unreadable("[[ is not closed")
            if at.keyword("]]"):
                return
            if at.takes("&&", "||", "(", ")", "|") or (not at.process() and at.takes("<", ">")):
                continue
            if subscripted(at.word().text):
                raise again("[[ is given")

    def _simple(self) -> None:
        at, words, assignments, redirects = self.at, list[Word](), list[tuple[str, Word]](), list[Redirect]()
        while True:
            at.blanks()
            if at.ended:
                break
            found = at.match(_REDIRECT)
            if found is not None and not at.process():
                redirects.append(self._redirect(found))
                continue
            if at.char in "\n;&|)":
                break
            if at.peek("("):
                if len(words) == 1 and not (assignments or redirects) and words[0].shape == words[0].text:
                    self._function(words[0].text)
                    return
                raise unreadable("a parenthesis stands within a command")
            word = at.word()
            begins = None if words and words[0].text not in DECLARING else ASSIGNED.match(word.shape)
            if begins is not None:
                value = self._value(word, begins.end())
                value = opened() if words and "{" in value.shape else value
                if words:
                    words.append(word)
                    self.script.values.setdefault(begins[1], []).append(value)
                else:
                    assignments.append((begins[1], value))
            else:
                if not words and "[" in word.shape and word.shape != "[":
                    raise unreadable("a program's name has a bracket")
                made = braces(word)
                if words and words[0].text in DECLARING:
                    for found in filter(None, (ASSIGNED.match(one.shape) for one in made)):
                        self.script.values.setdefault(found[1], []).append(opened())
                if not words and len(made) > 1:
                    raise unreadable("a program's name is made by braces")
                words.extend(made)
        if not (words or assignments or redirects):
            raise unreadable("a command is expected")
        self._add(Command(tuple(words), tuple(assignments), tuple(redirects)))

    def _add(self, command: Command) -> None:
        """Add a simple command to the script, with what it sets."""
        script, flow = self.script, self._flow
        command = replace(command, sure=script.sure, piped=printed(flow.brought) if flow.brought else None)
        script.commands.append(command)
        if len(script.commands) > MAX_COMMANDS:
            raise RefusedCommandError(
                "E_LIMIT_COMMAND", f"more than {MAX_COMMANDS} commands in one command line"
            )
        words, set_here = command.words, list[str]()
        first = next((one.text for one in command.unwrapped), "")
        # What stands before a program is set for that program alone.
        if not words or first in _KEEPING:
            for name, value in command.assignments:
                script.values.setdefault(name, []).append(value)
        if not words or words[0].text in DECLARING:
            begun = filter(None, (ASSIGNED.match(one.shape) for one in words[1:]))
            set_here = [*(name for name, _ in command.assignments), *(one[1] for one in begun)]
        sets = certainly(command, posix=self.at.posix)
        reads = listed_name(command)
        if reads is not None and command.piped is not None:
            script.values.setdefault(reads, []).append(one_of(command.piped))
            set_here = [reads]
        for one in set_here:
            script.first.setdefault(one, len(script.commands))
            script.first.setdefault(f"{one}[]", len(script.commands))
        flow.simple(command, sets, frozenset({reads} if reads else ()))

    def _now(self, value: Word) -> Word:
        """Return a value, or one of which nothing is known where it is made of names that may not be set yet."""
        names = set(map(base_name, value.expanded or ())) - {""}
        return value if names <= self.script.sure | GIVEN else opened()

    def _value(self, word: Word, start: int) -> Word:
        at = self.at
        if subscripted(literally(word)):
            raise again("an assignment has")
        self.script.evaluates |= "[" in word.shape[:start]
        name, joined = NAME.match(word.text), word.shape[start - 2] in "+]"
        listed = f"{name[0] if name else ''}[]"
        value = opened() if joined else word.cut(start)
        if start == len(word.text) and at.peek("("):
            self.script.values.setdefault(listed, []).extend(self._array())
            return opened(ARRAY)
        if joined:
            self.script.values.setdefault(listed, []).append(opened())
        return self._now(value)

    def _array(self) -> list[Word]:
        at, found = self.at, list[Word]()
        if at.posix:
            raise unreadable("an array is not known to every shell")
        at.skip(1)
        while True:
            at.blanks(newlines=True)
            if at.takes(")"):
                break
            if at.ended:
                raise unreadable("an array is not closed")
            listed = at.sees("$(", "`")
            word = at.word()
            if subscripted(f"a{literally(word)}"):
                raise again("an array has")
            found.extend(self._now(one_of(one) if listed else one) for one in braces(word))
        if not at.ended and at.char not in " \t\n;&|)":
            raise unreadable("something follows an array without a blank")
        return found

    def _redirect(self, found: re.Match[str]) -> Redirect:
        at = self.at
        operator = found[1] or found[2]
        if at.posix and (operator == "<<<" or found[2] or "{" in found[0]):
            raise unreadable(f"{found[0]} is not known to every shell")
        if (name := NAME.search(found[0])) is not None:
            self.script.named.append(name[0])
            self.script.values.setdefault(name[0], []).append(opened())
        at.skip(len(found[0]))
        at.blanks()
        if at.ended or at.char in "\n;&|":
            raise unreadable("a redirection has no target")
        if operator in {"<<", "<<-"}:
            return Redirect("<<", literal(""), at.here_document(strip=operator == "<<-"))
        target = at.word()
        if operator in {">&", "<&"} and target.text.startswith("-") and target.text != "-":
            raise unreadable("something follows a closed descriptor without a blank")
        made = braces(target)
        if len(made) > 1 or WIDE in made[0].text:
            raise unreadable("a redirection has more than one target")
        return Redirect(operator, target if operator == "<<<" else made[0])
