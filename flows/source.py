"""YAML with positions, read defensively: no tags, no duplicate keys, bounded size, depth and aliases."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from flows.findings import MAX_FINDINGS, Code, Fault, Finding, PathInFile, dotted

MAX_FILE_BYTES = 128 * 1024
MAX_DEPTH = 32
MAX_ALIASES = 100
MAX_VALUES = 20_000
"""How many values a file may hold, each alias counted as all that it stands for."""

_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, order=True)
class Place:
    """A position in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Source:
    """A file as plain data, with the place of every key and value."""

    file: str
    data: object
    values: Mapping[PathInFile, Place]
    keys: Mapping[PathInFile, Place]

    def at(self, path: PathInFile, *, on_key: bool = False) -> Place:
        """Return the place of a value (or its key); of the nearest value around it if it is not written."""
        if on_key and path in self.keys:
            return self.keys[path]
        for length in range(len(path), -1, -1):
            place = self.values.get(path[:length])
            if place is not None:
                return place
        return Place(1, 1)

    def finding(self, fault: Fault) -> Finding:
        """Return the fault with its place in this file."""
        place = self.at(fault.path, on_key=fault.on_key)
        return Finding(self.file, place.line, place.column, fault.code, fault.what, fault.mend)


class _Refused(Exception):
    """Raised to stop at a fault after which the rest of the file means nothing."""

    def __init__(self, place: Place, code: Code, what: str, mend: str) -> None:
        super().__init__(what)
        self.place, self.code, self.what, self.mend = place, code, what, mend


@dataclass(frozen=True)
class _Node:
    """A finished value: how many values it holds, and how deep they nest, aliases counted in full."""

    value: object
    size: int = 1
    depth: int = 0


@dataclass
class _Open:
    """A mapping or list whose end has not been seen."""

    path: PathInFile
    place: Place
    value: dict[str, object] | list[object]
    anchor: str | None
    size: int = 1
    depth: int = 1
    key: str | None = None
    again: bool = False


def read_source(file: str, text: str, *, first_line: int = 1) -> tuple[Source | None, list[Finding]]:
    """Read YAML; the source is None if it cannot be used at all. ``first_line`` is the line ``text`` begins at."""
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_FILE_BYTES:
        what = f"the file has {size} bytes; at most {MAX_FILE_BYTES} are read"
        return None, [Finding(file, 1, 1, "yaml_limit", what, "split the flow, or move text into personas")]
    builder = _Builder(file, first_line)
    try:
        builder.feed(YAML(typ="safe", pure=True).parse(text.removeprefix("\ufeff")))
    except _Refused as refused:
        place = refused.place
        builder.findings.append(
            Finding(file, place.line, place.column, refused.code, refused.what, refused.mend)
        )
    except YAMLError as error:
        builder.findings.append(_syntax_finding(file, first_line, text, error))
    else:
        source = Source(file, builder.root, builder.values, builder.keys)
        return source, sorted(builder.findings)[:MAX_FINDINGS]
    return None, sorted(builder.findings)[:MAX_FINDINGS]


def _syntax_finding(file: str, first_line: int, text: str, error: YAMLError) -> Finding:
    line, column, what = 0, 0, str(error).splitlines()[0]
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        if mark is not None:
            line, column = mark.line, mark.column
        what = error.problem or error.context or what
    else:
        bad = re.search(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
        if bad is not None:
            line = text.count("\n", 0, bad.start())
            what = f"character U+{ord(bad.group()):04X} is not allowed"
    return Finding(file, first_line + line, column + 1, "yaml_syntax", what, "write valid YAML 1.2")


@dataclass
class _Builder:
    """Builds plain data from YAML events without recursion."""

    file: str
    first_line: int
    findings: list[Finding] = field(default_factory=list)
    values: dict[PathInFile, Place] = field(default_factory=dict)
    keys: dict[PathInFile, Place] = field(default_factory=dict)
    root: object = None
    _stack: list[_Open] = field(default_factory=list)
    _anchors: dict[str, _Node] = field(default_factory=dict)
    _aliases: int = 0
    _documents: int = 0

    def feed(self, events: Iterable[Any]) -> None:
        for event in events:
            place = Place(self.first_line + event.start_mark.line, event.start_mark.column + 1)
            match event:
                case DocumentStartEvent():
                    self._documents += 1
                    if self._documents > 1:
                        raise _Refused(
                            place, "yaml_syntax", "a second document begins", "one file, one document"
                        )
                case MappingStartEvent() | SequenceStartEvent():
                    self._begin(event, place)
                case MappingEndEvent() | SequenceEndEvent():
                    ended = self._stack.pop()
                    self._put(_Node(ended.value, ended.size, ended.depth), ended.anchor)
                case AliasEvent():
                    self._alias(event, place)
                case ScalarEvent():
                    self._scalar(event, place)
                case _:
                    pass
        if self._documents == 0:
            raise _Refused(Place(1, 1), "yaml_syntax", "the file is empty", "write the file")

    def _begin(self, event: Any, place: Place) -> None:
        self._refuse_tag(event, place)
        if len(self._stack) >= MAX_DEPTH:
            raise _too_deep(place)
        path = self._value_path(place)
        self.values.setdefault(path, place)
        value: dict[str, object] | list[object] = {} if isinstance(event, MappingStartEvent) else []
        self._stack.append(_Open(path, place, value, event.anchor))

    def _alias(self, event: Any, place: Place) -> None:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise _Refused(place, "yaml_limit", f"more than {MAX_ALIASES} aliases", "write the values out")
        if event.anchor not in self._anchors:
            what = f"alias *{event.anchor} stands for nothing that ended before it"
            raise _Refused(place, "yaml_syntax", what, "define the anchor first; a value cannot hold itself")
        node = self._anchors[event.anchor]
        if len(self._stack) + node.depth > MAX_DEPTH:
            raise _too_deep(place)
        self.values.setdefault(self._value_path(place), place)
        self._put(node, None)

    def _scalar(self, event: Any, place: Place) -> None:
        self._refuse_tag(event, place)
        # JSON writes a character beyond U+FFFF as two halves
        text: str = _PAIR.sub(_joined, event.value)
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            raise _Refused(place, "yaml_syntax", "text holds NUL or half a character", "remove the escape")
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            self._key(top, top.value, text, place)
            return
        plain = event.implicit[0]
        path = self._value_path(place)
        self.values.setdefault(path, self.keys.get(path, place) if plain and not text else place)
        self._put(_Node(_plain_value(text) if plain else text), event.anchor)

    def _key(self, top: _Open, value: dict[str, object], key: str, place: Place) -> None:
        path = (*top.path, key)
        top.key, top.again = key, key in value
        if top.again:
            what = f"`{dotted(path)}` is written twice (first in line {self.keys[path].line})"
            self.findings.append(
                Finding(self.file, place.line, place.column, "duplicate_key", what, "keep one of them")
            )
        self.keys.setdefault(path, place)

    def _value_path(self, place: Place) -> PathInFile:
        if not self._stack:
            return ()
        top = self._stack[-1]
        if isinstance(top.value, list):
            return (*top.path, len(top.value))
        if top.key is None:
            raise _Refused(place, "yaml_syntax", "a key is not plain text", "write keys as plain words")
        return (*top.path, top.key)

    def _put(self, node: _Node, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._stack:
            self.root = node.value
            return
        top = self._stack[-1]
        top.size += node.size
        top.depth = max(top.depth, node.depth + 1)
        if top.size > MAX_VALUES:
            what = f"more than {MAX_VALUES} values, aliases counted in full"
            raise _Refused(top.place, "yaml_limit", what, "write less")
        if isinstance(top.value, list):
            top.value.append(node.value)
            return
        if top.key is not None and not top.again:
            top.value[top.key] = node.value
        top.key = None

    @staticmethod
    def _refuse_tag(event: Any, place: Place) -> None:
        if event.tag is not None:
            raise _Refused(
                place, "yaml_syntax", f"tag {event.tag} is not allowed", "write the value without a tag"
            )


def _joined(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _too_deep(place: Place) -> _Refused:
    return _Refused(place, "yaml_limit", f"nested deeper than {MAX_DEPTH}", "nest less")


def _plain_value(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text
