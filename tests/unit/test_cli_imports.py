"""What a command imports before it does anything: most of the time of a short one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import COMMANDS
from transports.claude_server import SERVER_SCRIPT

_IMPORTED = re.compile(r"^import '([\w.]+)' #", re.MULTILINE)

ROOT = Path(__file__).resolve().parents[2]
OURS = {"activities", "cli", "flows", "policy", "schemas", "store", "system", "transports", "workflows"}
SLOW = {"asyncio", "jsonschema", "opentelemetry", "psutil", "pydantic", "rich", "ruamel", "temporalio"}
GIVEN = {
    "workspace": str(ROOT),
    "read_only": True,
    "screened": False,
    "environment": None,
    "timeout_s": 1.0,
    "version": "1",
}


def imported(*arguments: str, said: str = "") -> tuple[set[str], str]:
    """Run Python to its end; return every module that it imported, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-v", *arguments],
        cwd=ROOT, input=said, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return set(_IMPORTED.findall(done.stderr)), done.stdout


def slow(modules: set[str]) -> set[str]:
    return SLOW & {module.partition(".")[0] for module in modules}


def ours(modules: set[str]) -> set[str]:
    return {module for module in modules if module.partition(".")[0] in OURS}


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_the_list_of_commands_imports_none_of_them(arguments: list[str]) -> None:
    modules, printed = imported("-m", "cli.main", *arguments)

    assert "Usage: stepwise" in printed
    assert ours(modules) == {"cli"}
    assert slow(modules) == set()


def test_a_command_imports_no_other_one() -> None:
    modules, printed = imported("-m", "cli.main", "config", "--help")

    assert "Usage: stepwise config" in printed
    assert modules & {module for module, _ in COMMANDS.values()} == {"cli.config"}


def test_the_mcp_command_imports_nothing_that_is_slow_but_what_reads_options() -> None:
    modules, printed = imported("-m", "cli.main", "mcp", "--help")

    assert "Usage: stepwise mcp" in printed
    assert slow(modules) == {"pydantic"}, "typer needs it"


def test_an_mcp_client_knows_the_tools_before_anything_slow_is_imported() -> None:
    # What makes calls cannot be imported here: the answers need none of it.
    program = (
        "import json, sys; sys.modules['cli.mcp_server'] = None; "
        "from cli.mcp_entry import serve; serve(json.loads(sys.argv[1]))"
    )
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    said = "".join(f"{json.dumps(message)}\n" for message in asked)

    modules, printed = imported("-c", program, json.dumps(GIVEN), said=said)

    hello, listed = [json.loads(line)["result"] for line in printed.splitlines()]
    assert hello["serverInfo"] == {"name": "stepwise", "version": "1"}
    assert "run_command" in [tool["name"] for tool in listed["tools"]]
    assert slow(modules) | (modules & {"typer", "importlib.metadata"}) == set()
    assert ours(modules) == {
        *("cli", "cli.mcp_declared", "cli.mcp_entry", "cli.mcp_protocol"),
        *("schemas", "schemas.json_text"),
    }


def called(tmp_path: Path, tool: str, **arguments: str) -> set[str]:
    """Have the server of tools make a call, and wait for its answer; return what it imported."""
    asked = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }
    said, environment = tmp_path / "stderr", tmp_path / "environment.json"
    environment.write_text('{"PATH": "/usr/bin:/bin"}')
    given = json.dumps({**GIVEN, "environment": str(environment)})
    with said.open("wb") as stderr, subprocess.Popen(
        [sys.executable, "-v", "-I", "-S", str(SERVER_SCRIPT), given],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asked).encode() + b"\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        server.stdin.close()
    assert not answer["result"]["isError"]
    return set(_IMPORTED.findall(said.read_text()))


def test_the_server_of_tools_imports_nothing_that_is_slow_for_files(tmp_path: Path) -> None:
    modules = called(tmp_path, "read_file", path="pyproject.toml")

    assert slow(modules) | (modules & {"dataclasses", "inspect", "logging", "pathlib", "site"}) == set()
    assert {each for each in modules if each.startswith("policy")} == set()


def test_the_server_of_tools_imports_for_commands_what_judges_and_guards_them(tmp_path: Path) -> None:
    modules = called(tmp_path, "run_command", command="ls")

    assert slow(modules) == {"asyncio"}
    assert modules & {"policy.secrets", "schemas.common", "system.leftovers"} == set()


def test_the_server_of_tools_looks_for_no_site_packages_before_its_client_is_gone_or_calls() -> None:
    bare, _ = imported("-I", "-S", "-c", "")
    modules, _ = imported("-I", "-S", str(SERVER_SCRIPT), json.dumps(GIVEN))

    assert "site" not in modules | bare
    assert ours(modules) == {
        *("cli", "cli.mcp_declared", "cli.mcp_protocol"),
        *("schemas", "schemas.json_text"),
    }
