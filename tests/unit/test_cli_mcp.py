"""What an MCP client is told of the tools, and what its calls are held to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cli.mcp_arguments import checked
from cli.mcp_commands import Shell
from cli.mcp_declared import DECLARED
from cli.mcp_protocol import MAX_LINE, RUN, Input
from cli.mcp_tools import Said, Workshop
from schemas.errors import StepwiseError
from system.files import Root

SOME: dict[str, Any] = {"path": "a", "content": "", "old": "x", "new": "y", "command": "touch b"}
EVERYTHING: Any = (
    None,
    True,
    0,
    1,
    -1,
    0.5,
    2.0,
    3_600,
    3_601,
    float("inf"),
    "",
    "text",
    [],
    ["a"],
    {},
    {"a": 1},
)


def some(tool: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a tool that are as declared."""
    return {name: SOME[name] for name in SOME.keys() & tool["inputSchema"]["properties"].keys()}


def is_taken(tool: str, given: dict[str, Any]) -> bool:
    try:
        checked(tool, given)
    except StepwiseError as refused:
        return refused.code != "bad_arguments"
    return True


async def call(folder: Path, name: str, arguments: dict[str, Any]) -> Said:
    """Make a call where only reading is allowed."""
    if name == RUN:
        shell = Shell(str(folder), read_only=True, environment={}, timeout_s=1, screened=False)
        return await shell.call(arguments)
    workshop = Workshop(str(folder), read_only=True)
    try:
        return workshop.call(name, arguments)
    finally:
        workshop.close()


@pytest.mark.parametrize("tool", DECLARED, ids=lambda tool: tool["name"])
async def test_what_is_said_to_read_may_be_called_where_nothing_may_be_changed(
    tool: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("x")
    if tool["name"] == "list":
        (tmp_path / "a").unlink()
        (tmp_path / "a").mkdir()

    said = await call(tmp_path, tool["name"], some(tool))

    assert said.failed == (not tool["annotations"]["readOnlyHint"])
    assert said.failed == said.text.startswith(("read_only", "E_"))


@pytest.mark.parametrize("tool", DECLARED, ids=lambda tool: tool["name"])
def test_what_is_not_required_has_a_default_that_is_as_declared(tool: dict[str, Any]) -> None:
    fields = tool["inputSchema"]["properties"]
    required = tool["inputSchema"].get("required", [])
    given = {name: value for name, value in some(tool).items() if name in required}

    whole = checked(tool["name"], given)

    assert whole.keys() == fields.keys()
    assert checked(tool["name"], whole) == whole


@pytest.mark.parametrize("tool", DECLARED, ids=lambda tool: tool["name"])
def test_what_is_taken_is_what_the_schema_takes_that_clients_are_told(tool: dict[str, Any]) -> None:
    told = Draft202012Validator(tool["inputSchema"])
    taken = some(tool)
    calls = [{**taken, name: value} for name in tool["inputSchema"]["properties"] for value in EVERYTHING]
    without = [{name: taken[name] for name in taken.keys() - {left}} for left in taken]

    for given in [*calls, *without, {**taken, "more": 1}]:
        assert is_taken(tool["name"], given) == told.is_valid(given), given


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        ("read_file", {}, "path: it is missing, give a string"),
        ("read_file", {"path": 1}, "path: give a string"),
        (
            "read_file",
            {"path": "a", "line": 1},
            "line: there is no such field, leave it out; there are path, offset, limit",
        ),
        ("read_file", {"path": "a", "offset": 0}, "offset: give an integer (minimum 1)"),
        ("read_file", {"path": "a", "offset": True}, "offset: give an integer (minimum 1)"),
        ("read_file", {"path": "a", "offset": 1.5}, "offset: give an integer (minimum 1)"),
        ("read_file", {"path": "a", "offset": None}, "offset: give an integer (minimum 1)"),
        ("read_file", {"path": "a", "limit": 0}, "limit: give an integer (minimum 1) or null"),
        ("list", {"recursive": "yes"}, "recursive: give true or false"),
        ("write_file", {}, "path: it is missing, give a string; content: it is missing, give a string"),
        ("edit_file", {"path": "a", "old": "", "new": ""}, "old: give a string (minLength 1)"),
        (
            "run_command",
            {"command": "ls", "timeout_s": float("nan")},
            "timeout_s: give a number (exclusiveMinimum 0, maximum 3600) or null",
        ),
    ],
)
async def test_arguments_that_do_not_fit_are_named_with_what_they_have_to_be(
    tool: str, given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert await call(tmp_path, tool, given) == Said(f"bad_arguments: {said}", failed=True)


@pytest.mark.parametrize(
    ("tool", "given", "taken"),
    [
        ("read_file", {"path": "a"}, {"path": "a", "offset": 1, "limit": None}),
        ("read_file", {"path": "a", "limit": 2}, {"path": "a", "offset": 1, "limit": 2}),
        ("read_file", {"path": "a", "offset": 2.0}, {"path": "a", "offset": 2, "limit": None}),
        ("list", {}, {"path": ".", "recursive": False}),
        ("run_command", {"command": "ls"}, {"command": "ls", "timeout_s": None}),
        ("run_command", {"command": "ls", "timeout_s": 3_600}, {"command": "ls", "timeout_s": 3_600}),
    ],
)
def test_what_is_not_given_has_its_default(tool: str, given: dict[str, Any], taken: dict[str, Any]) -> None:
    whole = checked(tool, given)
    assert whole == taken
    assert all(type(whole[name]) is type(value) for name, value in taken.items())


async def test_a_tool_that_fails_in_a_way_of_its_own_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_deep(*_: object, **__: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(Root, "list", too_deep)

    assert await call(tmp_path, "list", {}) == Said("RecursionError: too deep", failed=True)


def test_lines_come_whole_in_whatever_pieces_they_were_sent() -> None:
    reading, writing = os.pipe()
    client = Input(reading)
    os.write(writing, b"one\ntwo\nth")
    assert (client.line(), client.unread) == (b"one\n", b"two\nth")
    client.put_back(b"one\n")
    assert [client.line(), client.line()] == [b"one\n", b"two\n"]
    os.write(writing, b"ree\n\nfour")
    os.close(writing)
    assert [client.line() for _ in range(4)] == [b"three\n", b"\n", b"four", None]
    os.close(reading)


def test_a_line_without_an_end_is_not_read_for_ever(tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    with endless.open("wb") as file:
        file.truncate(2 * MAX_LINE)
    with endless.open("rb") as file, pytest.raises(ValueError, match=str(MAX_LINE)):
        Input(file.fileno()).line()
