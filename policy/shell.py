"""A shell's text as the simple commands in it, however deep they stand. Pure, and closed: what is not certain is refused.

It reads bash and POSIX sh. It does not build a tree: structure only matters where it decides what is a command and what
is data. Where shells differ, or a text is legal but obscure, it refuses rather than guesses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from policy.command_names import SHELLS
from policy.shell_chars import Cursor
from policy.shell_words import (
    Command,
    Redirect,
    RefusedCommandError,
    Script,
    Word,
    braces,
    literal,
    literally,
    opened,
    subscripted,
    substitutes,
    unreadable,
)

MAX_COMMANDS: Final = 256
"""Simple commands in one text, nested ones included; more are refused, not skipped."""

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?\+?=")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION: Final = re.compile(r"[^\s$`'\"\\/(){}<>|&;*?\[~=-][^\s$`'\"\\/(){}<>|&;*?\[~=]*")
_REDIRECT: Final = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>>|>\||>&|<|>)|(&>>|&>)")
_OPERATORS: Final = ("&&", "||", "|&", ";", "|", "&")
_ITEM_ENDS: Final = (";;&", ";;", ";&")
_GLUE: Final = frozenset({"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "!"})
_LOOPS: Final = frozenset({"for", "select"})
_MISPLACED: Final = frozenset({"coproc", "}", "esac", "in", "]]"})
RESERVED: Final = frozenset({*_GLUE, *_LOOPS, *_MISPLACED, "{", "[[", "case", "function", "time"})
"""Words of the shell's own; one that was read as a program's name was written so that it would be."""
_DECLARING: Final = frozenset({"declare", "local", "export", "readonly", "typeset"})
_BASH_ONLY: Final = frozenset({"[[", "((", "select", "function"})
_NAMING: Final = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "wait"})
"""Builtins that set the names among their words."""
_EVALUATING: Final = frozenset(
    {*_DECLARING, *_NAMING, "test", "[", "let", "unset", "set", "env"} - {"printf"}
)
"""Builtins that may expand once more what stands in a subscript."""
_TOLD: Final = re.compile(r"-\w*c\w*")
_COUNTING: Final = frozenset({"let", "declare", "typeset", "local"})
_BEFORE: Final = frozenset({"builtin", "command", "exec", "--", "-p"})
_WAITING: Final = "&&", "||", "|", "|&"


def read_script(text: str, *, posix: bool = False, depth: int = 0) -> Script:
    """Return every simple command of ``text``; raise RefusedCommandError when it cannot be read with certainty.

    ``posix`` says that sh runs it: what only bash knows is refused, since sh would take it for something else.
    """
    script = Script()
    _Reader(Cursor(text, posix=posix, depth=depth, script=script, read=_read), outermost=True).commands("")
    _check_evaluated(script)
    return script


def _check_evaluated(script: Script) -> None:
    """Refuse a text that bash may expand once more: a subscript where it reads a name or a number."""
    script.evaluates |= any(one.words and one.words[0].text in _COUNTING for one in script.commands)
    for command in script.commands:
        _check_builtin(command, script)
    for words in script.values.values():
        for word in words:
            _check_value(word)
            if script.evaluates and substitutes(literally(word)):
                raise unreadable("a value holds a command that an arithmetic expression may run")


def _check_builtin(command: Command, script: Script) -> None:
    words = list(command.words)
    while words and words[0].text in _BEFORE:
        words.pop(0)
    name = words[0].text if words else ""
    setting = name in _NAMING and (name != "printf" or any(one.text.startswith("-v") for one in words))
    given = [word.text for word in words[1:]] if name in _EVALUATING else []
    if name in script.functions or setting:
        given = [
            *given,
            *(literally(word) for word in words[1:]),
            *(word.text for word in words[1:3] if setting),
        ]
    if name.rpartition("/")[2] in SHELLS:
        told = next((at for at, one in enumerate(words) if _TOLD.fullmatch(one.text)), len(words))
        given = [literally(word) for word in words[told + 2 :]]
    if any(subscripted(text) for text in given):
        raise unreadable(f"{name} is given a subscript that bash would expand once more")
    if not words or setting:
        for redirect in command.redirects:
            for word in (redirect.target, *redirect.body):
                _check_value(word)
    if script.evaluates and any(
        subscripted(text) and substitutes(text) for text in map(literally, command.words)
    ):
        raise unreadable("a word holds a command that an arithmetic expression may run")


def _check_value(word: Word) -> None:
    if subscripted(literally(word)):
        raise unreadable("a value has a subscript that bash would expand once more")


def _certainly(words: Sequence[Word], assignments: Sequence[tuple[str, Word]]) -> list[str]:
    """Return the names that a command certainly sets, to what is known, if it is not one that something may keep from it."""
    if not words:
        return [name for name, _ in assignments] if all(value.known for _, value in assignments) else []
    if words[0].text not in _DECLARING or words[0].text == "local" or assignments:
        return []
    begun = [_ASSIGNMENT.match(word.shape) for word in words[1:]]
    known = all(word.known for word in words)
    return [one[1] for one in begun if one is not None] if known and all(begun) else []


def _read(at: Cursor, closer: str) -> None:
    _Reader(at).commands(closer)


class _Reader:
    """Reads commands at a cursor, adding each to the script."""

    def __init__(self, cursor: Cursor, *, outermost: bool = False) -> None:
        self.at = cursor
        self.script = cursor.script
        self._outermost = outermost
        self._within = 0
        self._certain = False
        self._set: list[str] = []

    def commands(self, closer: str) -> None:
        """Read commands up to ``closer`` (a parenthesis, a brace, the end of a case item, or the end of the text)."""
        at = self.at
        at.deeper()
        needed, seen, operator = False, False, ""
        while True:
            at.blanks(newlines=not seen or needed)
            self._settle()
            if at.ended:
                if closer or needed:
                    raise unreadable("the command line ends before it is complete")
                at.finish()
                break
            if at.peek("\n"):
                at.newline()
                seen, operator = False, ""
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
            if at.match(_REDIRECT) is None and (taken := at.takes(*_OPERATORS)):
                operator = taken
                if not seen or needed or (at.posix and operator == "|&"):
                    raise unreadable("an operator has no command before it")
                needed = operator in _WAITING
                seen = needed
                continue
            if self._closes(closer):
                if needed:
                    raise unreadable("an operator has no command after it")
                break
            self._certain = self._outermost and not (closer or self._within) and operator not in _WAITING
            self._command()
            needed, seen = False, True
        at.shallower()

    def _settle(self) -> None:
        """Note the names that a command which certainly ran has set, unless it ran beside the shell."""
        names, self._set, at = self._set, [], self.at
        if at.pending or (at.sees("|", "&") and not at.sees("||", "&&")):
            return
        for name in names:
            self.script.sure.setdefault(name, len(self.script.commands))

    def _closes(self, closer: str) -> bool:
        wanted = {"}": "}", "esac": "esac"}.get(closer, "")
        return bool(wanted) and self.at.keyword(wanted)

    def _command(self) -> None:
        at = self.at
        if at.peek("(("):
            self._bash_only("((")
            at.arithmetic(2)
        elif at.peek("("):
            at.skip(1)
            self.commands(")")
        elif at.keyword("{"):
            self.commands("}")
        elif (glue := at.keyword_of(_GLUE)) is not None:
            # What closes nothing is no shell's text; nothing after it is certain.
            self._within += {"if": 1, "while": 1, "until": 1, "fi": -1, "done": -1}.get(glue, 0)
            self._within = self._within if self._within >= 0 else MAX_COMMANDS
        elif not at.posix and at.keyword("time"):
            at.blanks()
            while at.keyword("-p") or at.keyword("--"):
                at.blanks()
        elif (kind := at.keyword_of(_LOOPS)) is not None:
            self._loop(kind)
        elif at.keyword("case"):
            self._case()
        elif at.keyword("function"):
            self._bash_only("function")
            at.blanks()
            self._function(at.plain_word())
        elif at.keyword("[["):
            self._bash_only("[[")
            self._condition()
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
        self._within += 1
        at.blanks()
        if at.peek("(("):
            self._bash_only("((")
            at.arithmetic(2)
            return
        name = at.plain_word()
        if _NAME.fullmatch(name) is None:
            raise unreadable(f"{kind} has no name after it")
        self.script.named.append(name)
        at.blanks(newlines=True)
        if not at.keyword("in"):
            self.script.values.setdefault(name, []).append(opened())
            return
        while True:
            at.blanks()
            if at.ended or at.peek("\n") or at.peek(";"):
                return
            for word in braces(at.word()):
                self.script.first.setdefault(name, len(self.script.commands))
                self.script.values.setdefault(name, []).append(word)

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
                raise unreadable("[[ is given a subscript that bash would expand once more")

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
            begins = None if words and words[0].text not in _DECLARING else _ASSIGNMENT.match(word.shape)
            if begins is not None:
                value = self._value(word, begins.end())
                value = opened() if words and "{" in value.shape else value
                self.script.values.setdefault(begins[1], []).append(value)
                if words:
                    words.append(word)
                else:
                    assignments.append((begins[1], value))
            else:
                if not words and "[" in word.shape and word.shape != "[":
                    raise unreadable("a program's name has a bracket")
                made = braces(word)
                if words and words[0].text in _DECLARING:
                    for found in filter(None, (_ASSIGNMENT.match(one.shape) for one in made)):
                        self.script.values.setdefault(found[1], []).append(opened())
                if not words and len(made) > 1:
                    raise unreadable("a program's name is made by braces")
                words.extend(made)
        if not (words or assignments or redirects):
            raise unreadable("a command is expected")
        self.script.commands.append(Command(tuple(words), tuple(assignments), tuple(redirects)))
        if not words or words[0].text in _DECLARING:
            begun = filter(None, (_ASSIGNMENT.match(one.shape) for one in words[1:]))
            for name in (*(name for name, _ in assignments), *(one[1] for one in begun)):
                self.script.first.setdefault(name, len(self.script.commands))
        if self._certain and not redirects:
            self._set = _certainly(words, assignments)
        if len(self.script.commands) > MAX_COMMANDS:
            raise RefusedCommandError(
                "E_LIMIT_COMMAND", f"more than {MAX_COMMANDS} commands in one command line"
            )

    def _value(self, word: Word, start: int) -> Word:
        at = self.at
        if subscripted(literally(word)):
            raise unreadable("an assignment has a subscript that bash would expand once more")
        self.script.evaluates |= "[" in word.shape[:start]
        value = opened() if word.shape[start - 2] in "+]" else Word(word.text[start:], word.shape[start:])
        if start == len(word.text) and at.peek("("):
            self._array()
            return opened()
        return value

    def _array(self) -> None:
        at = self.at
        if at.posix:
            raise unreadable("an array is not known to every shell")
        at.skip(1)
        while True:
            at.blanks(newlines=True)
            if at.takes(")"):
                break
            if at.ended:
                raise unreadable("an array is not closed")
            if subscripted(f"a{literally(at.word())}"):
                raise unreadable("an array has a subscript that bash would expand once more")
        if not at.ended and at.char not in " \t\n;&|)":
            raise unreadable("something follows an array without a blank")

    def _redirect(self, found: re.Match[str]) -> Redirect:
        at = self.at
        operator = found[1] or found[2]
        if at.posix and (operator == "<<<" or found[2] or "{" in found[0]):
            raise unreadable(f"{found[0]} is not known to every shell")
        if (name := _NAME.search(found[0])) is not None:
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
        if len(made) > 1:
            raise unreadable("a redirection has more than one target")
        return Redirect(operator, target if operator == "<<<" else made[0])
