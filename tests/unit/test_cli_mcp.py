"""What an MCP client is told of the tools, against the models that check the arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.mcp_declared import DECLARED
from cli.mcp_tools import Workshop


def _schema(model: Any) -> dict[str, Any]:
    schema: dict[str, Any] = model.model_json_schema()
    return {name: value for name, value in schema.items() if name not in {"description", "title"}}


def test_what_is_declared_is_what_is_checked(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, read_only=False, environment={}, timeout_s=1)
    workshop.close()

    assert [tool["name"] for tool in DECLARED] == list(workshop.tools)
    for tool in DECLARED:
        model = workshop.tools[tool["name"]].arguments
        assert tool["description"] == model.__doc__
        assert tool["inputSchema"] == _schema(model)


@pytest.mark.parametrize("tool", DECLARED, ids=lambda tool: tool["name"])
async def test_what_is_said_to_read_may_be_called_where_nothing_may_be_changed(
    tool: dict[str, Any], tmp_path: Path
) -> None:
    workshop = Workshop(tmp_path, read_only=True, environment={}, timeout_s=1)
    arguments = {"path": "a", "content": "", "old": "x", "new": "y", "command": "touch b"}
    names = tool["inputSchema"]["properties"]
    (tmp_path / "a").write_text("x")

    said = await workshop.call(tool["name"], {name: arguments[name] for name in arguments.keys() & names})
    workshop.close()

    assert tool["annotations"]["readOnlyHint"] == (not said.text.startswith(("read_only", "E_")))
