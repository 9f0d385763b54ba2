"""Writes the table of settings into docs/operations.md: ``python docs/settings_table.py [--check]``."""  # noqa: INP001 - a program beside the pages, no package

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from schemas.settings import WorkerSettings

PAGE: Final = Path(__file__).resolve().parent / "operations.md"
BEGIN: Final = "<!-- settings -->"
END: Final = "<!-- /settings -->"
USAGE: Final = 2

_TYPES: Final[dict[object, str]] = {
    str: "text",
    bool: "true/false",
    int: "integer",
    float: "number",
    Path: "folder",
}


def table() -> str:
    """Return the table in Markdown: one row per setting, in the order of the model."""
    rows = ["| setting | environment | type | default | meaning |", "|---|---|---|---|---|"]
    properties = WorkerSettings.model_json_schema()["properties"]
    for name, field in WorkerSettings.model_fields.items():
        above = properties[name].get("exclusiveMinimum")
        cells = (
            f"`{name}`",
            f"`STEPWISE_{name.upper()}`",
            type_of(field) + ("" if above is None else f" > {above:g}"),
            default_of(field),
            field.description or "",
        )
        rows.append("| " + " | ".join(_cell(text) for text in cells) + " |")
    return "\n".join(rows)


def type_of(field: FieldInfo) -> str:
    """Return a setting's type in words; raises KeyError for one that has none yet."""
    kind: Any = field.annotation
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) is list:
        return f"list of {'folders' if get_args(kind)[0] is Path else 'texts'}"
    return _TYPES[kind]


def default_of(field: FieldInfo) -> str:
    """Return a setting's default as a person would write it; a dash for an empty one."""
    value: Any = field.default
    if value in ("", []):
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"`{', '.join(value)}`"
    return f"{value:g}" if isinstance(value, float | int) else f"`{value}`"


def _cell(text: str) -> str:
    """Return a cell in which neither a bar nor an angle bracket means something to Markdown."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def with_table(page: str) -> str:
    """Return the page with the block between the markers written anew. Raises ValueError without the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        message = f"the page has no block {BEGIN} … {END}"
        raise ValueError(message)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` only compare; return the exit code (2: wrong arguments)."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python docs/settings_table.py [--check]\n")
        return USAGE
    page = PAGE.read_text(encoding="utf-8")
    fresh = with_table(page)
    if fresh == page:
        return 0
    if arguments:
        sys.stderr.write("docs/operations.md is stale: run `python docs/settings_table.py`\n")
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
