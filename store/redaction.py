"""Redaction in two layers: the exact values of secrets the worker handed out, then patterns. It fails closed."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar
from urllib.parse import quote, quote_plus

from policy.secrets import MARKER, MAX_PASSES, is_plain_value, is_secret_field, marker, redact
from schemas.cutting import head_of_cut
from store.errors import RedactionFailed

MIN_SECRET: Final = 6
"""Characters below which a value is too common to be taken out wherever it stands."""
_MIN_CUT: Final = 4
_SHORT: Final = 100
_MAX_CLEAN: Final = 20_000

T = TypeVar("T")


def _forms(value: str) -> set[str]:
    """Return the ways ``value`` may be written: plain, URL-quoted, JSON-escaped, base64 at any alignment."""
    found = {value, quote(value, safe=""), quote(value), quote_plus(value)}
    found |= {re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), form) for form in found}
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        found |= {escaped, escaped.replace("/", "\\/"), json.dumps(escaped, ensure_ascii=ascii_only)[1:-1]}
    raw = value.encode("utf-8", "surrogateescape")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode()
        found |= {whole, whole.rstrip("=")}
        for shift in range(3):
            # characters that also hold bits of the neighbours are left out
            first, last = -(-shift * 8 // 6), (shift + len(raw)) * 8 // 6
            found.add(encode(bytes(shift) + raw).decode()[first:last])
    return {form for form in found if len(form) >= MIN_SECRET}


class Redactor:
    """Takes secrets out of what is stored or logged; ``exact`` are values known to be secret.

    Doing it again changes nothing. Any failure is RedactionFailed, whose message holds nothing of the text.
    """

    def __init__(self, exact: Collection[str] = ()) -> None:
        self._lock = threading.Lock()
        self._exact: dict[str, str] = {}
        self._clean: set[str] = set()
        self.add(*exact)

    def add(self, *values: str) -> None:
        """Know further values as secret (their lines too); those under 6 characters are ignored."""
        known: dict[str, str] = {}
        for value in values:
            stripped = value.strip()
            lines = [line.strip() for line in stripped.splitlines()]
            for secret in (stripped, *(line for line in lines if len(line) >= 3 * MIN_SECRET)):
                if len(secret) >= MIN_SECRET:
                    known |= dict.fromkeys(_forms(secret), secret)
        with self._lock:
            self._clean.clear()
            merged = {**known, **self._exact}
            self._exact = dict(sorted(merged.items(), key=lambda item: (-len(item[0]), item[0])))

    def knows(self, text: str) -> bool:
        """Whether a value that is known to be secret stands in a text, however it is written."""
        return any(form in text for form in self._exact)

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        return self._closed(self._text, text)

    def data(self, data: bytes) -> bytes:
        """Return ``data`` without secrets; bytes that are no UTF-8 stay as they are."""
        return self._closed(self._data, data)

    def tree(self, value: Any) -> Any:
        """Return a JSON value without secrets: in strings, in keys, and in strings under a key like ``password``."""
        return self._closed(self._tree, value)

    @staticmethod
    def _closed(redaction: Callable[[T], T], value: T) -> T:
        try:
            return redaction(value)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may be written
            raise RedactionFailed(
                "E_REDACTION_FAILED", f"secrets could not be taken out ({type(error).__name__})"
            ) from None

    def _text(self, text: str) -> str:
        if text in self._clean:
            return text
        redacted = self._redacted(text)
        if redacted == text and len(text) <= _SHORT:
            # Keys and words come again and again, and are looked at once.
            if len(self._clean) >= _MAX_CLEAN:
                self._clean.clear()
            self._clean.add(text)
        return redacted

    def _redacted(self, text: str) -> str:
        for _ in range(MAX_PASSES):
            redacted = redact(self._without_exact(text))
            if redacted == text:
                return text
            text = redacted
        raise ValueError("redaction comes to no end")

    def _data(self, data: bytes) -> bytes:
        return self._text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _tree(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, (list, tuple)):
            return [self._tree(item) for item in value]
        if not isinstance(value, dict):
            raise TypeError("not a JSON value")
        redacted: dict[str, Any] = {}
        for key, item in value.items():
            clean = self._tree(item)
            if isinstance(clean, str) and is_secret_field(key) and not is_plain_value(clean):
                clean = marker("assignment", clean)
            redacted[self._text(key)] = clean
        if len(redacted) != len(value):
            raise ValueError("two keys are the same without their secrets")
        return redacted

    def _without_exact(self, text: str) -> str:
        exact = self._exact
        if found := [form for form in exact if form in text]:
            # markers come first, so that a secret like "redacted" does not eat them
            either = re.compile("|".join([f"({MARKER.pattern})", *map(re.escape, found)]))
            text = either.sub(lambda hit: hit[0] if hit[1] else marker("exact", exact[hit[0]]), text)
        if exact and (end := head_of_cut(text)) is not None:
            kept = text[:end]
            longest = max(self._overlap(kept, form) for form in exact)
            if longest:
                start = end - longest
                return f"{kept[:start]}{marker('cut', kept[start:])}{text[end:]}"
        return text

    @staticmethod
    def _overlap(kept: str, form: str) -> int:
        """Return how many characters at the end of a cut text begin ``form``."""
        sizes = range(min(len(kept), len(form) - 1), _MIN_CUT - 1, -1)
        return next((size for size in sizes if kept.endswith(form[:size])), 0)
