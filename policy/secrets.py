"""Secrets in text and in names: one closed list of patterns, each linear in the length of the text.

A pattern either ends in an open run of its own alphabet (so that it fails within its minimum length) or has bounded
parts, so no input makes it slow. Where a pattern cannot tell, it redacts: evidence may lose a word, never a secret.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from schemas.cutting import head_of_cut

Kind = Literal[
    "exact",
    "pem",
    "anthropic",
    "openai",
    "github",
    "gitlab",
    "aws",
    "google",
    "slack",
    "stripe",
    "npm",
    "pypi",
    "vendor",
    "jwt",
    "header",
    "userinfo",
    "cut",
    "assignment",
]
"""What a secret is; the first of two kinds names a stretch that both match. No kind reads like a name for a secret."""

_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MARKER: Final = re.compile(r"\[redacted:(?:" + "|".join(_KINDS) + r"):[0-9a-f]{8}\]")
"""What stands where a secret was."""
MAX_PASSES: Final = 16
"""How often a text is looked at again after a replacement, before it is given up."""

_MARKED: Final = re.compile(rf"(?:{MARKER.pattern})+[)\]}}.,:;]*")
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_CUT_PREFIX: Final = re.compile(
    r"gh[pousr]_|github_pat_|glpat-|sk-|AKIA|ASIA|AIza|ya29\.|xox[a-z]-|xapp-|[sr]k_(?:live|test)_|npm_|pypi-|hf_|eyJ"
)

_WORD: Final = (
    r"(?:pass(?:word|wd|phrase|code)|pwd|secret(?:[_-]?access)?[_-]?key(?:[_-]?base)?|secret|token"
    r"|(?:api|access|account|encryption|signing)[_. -]?key|private[_-]?key(?:[_-]?id)?|credentials?)"
)
_SUFFIX: Final = r"(?:[_-]?(?:value|text|b64|base64|hash)|[_-]?\d{1,3})?"
_TYPE: Final = r"(?:str(?:[ ]?\|[ ]?None)?|bytes|[Ss]tring|Optional\[str\]|Final(?:\[str\])?|SecretStr)"
_ASSIGN: Final = rf"\\{{0,3}}[\"'`]?\]?[ \t]{{0,8}}(?::[ ]?{_TYPE}[ ]?=|=>|:=|={{1,2}}|:)[ \t]{{0,8}}"
_PLAIN: Final = (
    r"(?:(?:bearer|basic|token)[ :][ ]?)?"
    r"(?:[^\s\"'`,;&<>\\]|\\(?![nrt\"'`])|[,;&<>](?![\s/]|\Z|[\w.-]{1,40}[ ]?[=:]))+"
)
_VALUE: Final = (
    r"(?:\\{1,3}(?P<q>[\"'])(?P<escaped>[^\"'\n]{1,4096}?)\\{1,3}(?P=q)"
    r"|\"(?P<double>(?:[^\"\\\n]|\\.){1,4096})\"|'(?P<single>(?:[^'\\\n]|\\.){1,4096})'|`(?P<tick>[^`\n]{1,4096})`"
    rf"|\\{{0,3}}[\"'`]?(?P<plain>{_PLAIN}))"
)

_NO_SECRET: Final = re.compile(
    r"(?:(?i:str|int|bytes|bool|float|string|none|null|nil|true|false|undefined)|\$\{\{?[\w. -]{0,80}\}{0,2}"
    r"|\$[A-Z_][A-Z0-9_]*|\{[\w.]{0,80}\}?|<[^<>]{0,80}>|\*+|\.{2,}|…"
    rf"|(?:os\.environ|os\.getenv|process\.env|self\.)[\w.()\[\]]*|(?:\w{{1,80}}\.){{0,8}}(?i:{_WORD}))[)\]}}.,:;]*"
)
"""Types, placeholders, look-ups and names: what stands after ``password=`` in source without being one."""
_CALL: Final = re.compile(r"(?<=[ \t])[A-Za-z_][A-Za-z_.]*[(\[]")
"""A call or subscript after ``token = ``; without the space it is taken for a secret."""


@dataclass(frozen=True)
class Finding:
    """A stretch of text that is a secret: its kind and where it starts and ends."""

    kind: Kind
    start: int
    end: int


@dataclass(frozen=True)
class _Pattern:
    kind: Kind
    hints: tuple[str, ...]
    regex: re.Pattern[str]


def _pattern(kind: Kind, hints: str, regex: str, flags: re.RegexFlag = re.ASCII) -> _Pattern:
    return _Pattern(kind, tuple(hints.lower().split()), re.compile(regex, flags))


_ANY_CASE: Final = re.ASCII | re.IGNORECASE
_PATTERNS: Final = (
    _pattern(
        "pem",
        "-----BEGIN",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:(?!-----)[\s\S]){0,16384}-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"|(?:[^A-Za-z0-9+/=]{0,16}[A-Za-z0-9+/=]{16,})*+)",
    ),
    _pattern("anthropic", "sk-ant-", r"sk-ant-[A-Za-z0-9_-]{6,}"),
    _pattern(
        "openai",
        "sk-",
        r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
        r"sk-(?:(?:proj|svcacct|admin|or)-[A-Za-z0-9_-]{8,}|(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_-]{16,})",
    ),
    _pattern("github", "gh github_pat_", r"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{10,}"),
    _pattern("gitlab", "gl", r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas)-[A-Za-z0-9_.-]{16,}"),
    _pattern("aws", "AKIA ASIA ABIA ACCA", r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16,}"),
    _pattern(
        "google",
        "AIza ya29. GOCSPX-",
        r"AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_.-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}",
    ),
    _pattern(
        "slack",
        "xox xapp- hooks.slack.com",
        r"xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{8,}|xapp-[A-Za-z0-9-]{16,}|hooks\.slack\.com/services/[A-Za-z0-9/]{16,}",
    ),
    _pattern(
        "stripe",
        "k_live_ k_test_ whsec_",
        r"[sr]k_(?:live|test)_[A-Za-z0-9_]{8,}|whsec_[A-Za-z0-9+/=]{16,}",
    ),
    _pattern("npm", "npm_", r"npm_[A-Za-z0-9_]{20,}"),
    _pattern("pypi", "pypi-", r"pypi-(?:AgE[A-Za-z0-9_-]{8,}|(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_-]{32,})"),
    _pattern(
        "vendor",
        "hf_ gsk_ xai- SG. dapi dckr_ dop_v1_ lin_api_ AGE-SECRET-KEY- hvs.",
        r"(?:hf|gsk)_[A-Za-z0-9_]{20,}|xai-[A-Za-z0-9_-]{32,}|SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}|dapi[0-9a-f]{32,}"
        r"|dckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}|dop_v1_[A-Za-z0-9_]{32,}|lin_api_[A-Za-z0-9_]{20,}"
        r"|AGE-SECRET-KEY-1[A-Z0-9]{20,}|hvs\.[A-Za-z0-9_-]{20,}",
    ),
    # the second branch takes a run that is no JWT as a whole, so that it is not looked at from each of its places
    _pattern(
        "jwt",
        "eyJ",
        r"(?P<secret>eyJ[A-Za-z0-9_-]{5,}+\.[A-Za-z0-9_-]{4,}+(?:\.[A-Za-z0-9_-]*+)+)|eyJ[A-Za-z0-9_-]*+",
    ),
    _pattern(
        "header",
        "authorization bearer",
        r"authorization\\{0,3}[\"'`]?\]?[ \t]{0,8}[=:][ \t]{0,8}\\{0,3}[\"'`]?"
        r"(?P<secret>(?:[a-z]{1,20}[ ]{1,4})?[^\s\"'`\\,;<>]+)"
        r"|bearer[ ]{1,4}(?P<bare>(?=[A-Za-z._~+/-]{0,64}[0-9=])[A-Za-z0-9._~+/=-]{8,}|[A-Za-z0-9._~+/=-]{20,})",
        _ANY_CASE,
    ),
    _pattern(
        "userinfo",
        "://",
        r"(?:(?<=https://)|(?<=http://))(?P<secret>[^\s/?#\"'<>\\]{1,512})@"
        r"|(?<=://)(?P<other>[^\s/?#\"'<>\\:@]{0,256}:[^\s/?#\"'<>\\]{1,512})@",
        _ANY_CASE,
    ),
    _pattern(
        "assignment",
        "pass pwd secret token key credential",
        rf"(?:{_WORD}{_SUFFIX}{_ASSIGN}|--(?:[a-z]{{1,20}}-){{0,3}}{_WORD}[ ]{{1,4}}){_VALUE}",
        _ANY_CASE,
    ),
    _pattern(
        "assignment",
        "</",
        rf"<[\w:.-]{{0,40}}{_WORD}[\w:.-]{{0,10}}>(?P<secret>[^<>\n]{{1,4096}})</",
        _ANY_CASE,
    ),
)

_GUESSES: Final = frozenset({"header", "userinfo", "assignment", "cut"})
"""Kinds that are told by what stands before them: prose has that, too."""
_KEY: Final = re.compile(r"(?=\S*[0-9])(?=\S*[A-Za-z])[^\s()\[\]{}<>,;]{8,}")
_VARIABLE: Final = re.compile(r"\$?[A-Z_][A-Z0-9_]*")

_ANY_HINT: Final = re.compile("|".join(re.escape(hint) for pattern in _PATTERNS for hint in pattern.hints))
"""Most texts hold none of these and are not looked at further."""
_SECRET_FIELD: Final = re.compile(rf"(?:{_WORD}{_SUFFIX}|authorization|cookie)\Z", _ANY_CASE)
_NAME_WITHIN: Final = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|APIKEY|COOKIE|ASKPASS|KUBECONFIG"
)
_NAME_PARTS: Final = frozenset(
    {"KEY", "KEYS", "PWD", "PASS", "PASSFILE", "AUTH", "PAT", "DSN", "NETRC", "JWT", "PRIVATE"}
)
_NAME_FOLDERS: Final = ("AWS_", "AZURE_")
_PATH: Final = re.compile(r"(?:/[\w.@ -]+)+/?")
_HARMLESS_NAMES: Final = frozenset({"PWD", "OLDPWD"})


def marker(kind: Kind, secret: str) -> str:
    """Return what stands where ``secret`` was: its kind and the first 8 hex digits of its SHA-256."""
    digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
    return f"[redacted:{kind}:{digest[:8]}]"


def _matches(text: str) -> Iterator[Finding]:
    lower = text.lower()
    for pattern in _PATTERNS if _ANY_HINT.search(lower) else ():
        if not any(hint in lower for hint in pattern.hints):
            continue
        for match in pattern.regex.finditer(text):
            groups = [name for name, value in match.groupdict().items() if value is not None and name != "q"]
            if pattern.regex.groupindex and not groups:
                continue
            start, end = match.span(groups[0]) if groups else match.span()
            if pattern.kind == "assignment" and (
                _NO_SECRET.fullmatch(text, start, end) or _CALL.match(text, start)
            ):
                continue
            yield Finding(pattern.kind, start, end)
    if (head := head_of_cut(text)) is not None:
        start = len(text[:head].rstrip(_ALPHABET))
        if token := _CUT_PREFIX.search(text, start, head):
            yield Finding("cut", token.start(), head)


def find(text: str) -> list[Finding]:
    """Return the secrets in ``text`` by place; those that overlap are one. Markers are not found again."""
    merged: list[Finding] = []
    for finding in sorted(_matches(text), key=lambda found: (found.start, found.end)):
        if _MARKED.fullmatch(text, finding.start, finding.end):
            continue
        if merged and finding.start < merged[-1].end:
            last = merged[-1]
            kind = min(last.kind, finding.kind, key=_KINDS.index)
            merged[-1] = Finding(kind, last.start, max(last.end, finding.end))
        else:
            merged.append(finding)
    return merged


def replace(text: str, findings: list[Finding]) -> str:
    """Return ``text`` with a marker in the place of each finding; findings are sorted and do not overlap."""
    parts: list[str] = []
    done = 0
    for finding in findings:
        parts += (text[done : finding.start], marker(finding.kind, text[finding.start : finding.end]))
        done = finding.end
    return "".join((*parts, text[done:]))


def redact(text: str) -> str:
    """Return ``text`` without secrets; doing it again changes nothing. Raises ValueError if it comes to no end."""
    for _ in range(MAX_PASSES):
        findings = find(text)
        if not findings:
            return text
        text = replace(text, findings)
    raise ValueError(f"still finds secrets after {MAX_PASSES} passes")


def key_within(value: object, where: str = "") -> tuple[str, Kind] | None:
    """Return where in a JSON value something stands that is a key for sure (``params.url``), and its kind.

    Where ``redact`` takes out whatever could be a secret, this is for what people are to be refused for: prose may say
    ``password: wrong``.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            inside = f"{where}.{name}" if where else str(name)
            if isinstance(item, str) and is_secret_field(str(name)) and _is_key(item):
                return inside, "assignment"
            if (found := key_within(item, inside)) is not None:
                return found
    if isinstance(value, list):
        return next(filter(None, (key_within(item, where) for item in value)), None)
    if isinstance(value, str):
        for finding in find(value):
            # the scheme of a header may stand before it
            words = value[finding.start : finding.end].split()
            if finding.kind not in _GUESSES or (words and _is_key(words[-1])):
                return where, finding.kind
    return None


def _is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None and _VARIABLE.fullmatch(text) is None and not is_plain_value(text)


def is_secret_field(name: str) -> bool:
    """Whether a JSON key or attribute of this name holds a secret (``password``, ``accessToken``, …)."""
    return _SECRET_FIELD.search(name[-80:]) is not None


def is_plain_value(value: str) -> bool:
    """Whether a value is a type, a placeholder or a marker, so that no secret is lost by showing it."""
    return not value.strip() or bool(_NO_SECRET.fullmatch(value) or _MARKED.fullmatch(value))


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name never passes to a child, whatever it holds."""
    upper = name.upper()
    if upper in _HARMLESS_NAMES:
        return False
    parts = upper.split("_")
    token = any(part.endswith("TOKEN") for part in parts) or ("TOKENS" in parts and "MAX" not in parts)
    return (
        token
        or upper.startswith(_NAME_FOLDERS)
        or _NAME_WITHIN.search(upper) is not None
        or not _NAME_PARTS.isdisjoint(parts)
    )


def secret_values(environment: Mapping[str, str], *names: str) -> list[str]:
    """Return the values of an environment that are secrets: of ``names``, of names that say so, and by pattern.

    Paths (of key files, sockets), names of other variables and what the settings of a cloud's client merely name are
    left out.
    """
    found: list[str] = []
    for name, value in environment.items():
        folder = name.upper().startswith(_NAME_FOLDERS) and not is_secret_field(name)
        merely_names = folder or value in environment or _PATH.fullmatch(value) or is_plain_value(value)
        by_name = is_secret_name(name) and not merely_names
        if name in names or by_name or find(value):
            found.append(value)
    return found
