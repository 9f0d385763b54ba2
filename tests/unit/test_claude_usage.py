"""What a session's program counts on from: its last note that can be read whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.common import Usage
from transports.claude_program import Folders
from transports.claude_usage import noted_total


def note(prompt: object, cost: object) -> str:
    models: dict[str, Any] = {"small": {"inputTokens": prompt}, "odd": 3}
    return json.dumps(
        {"type": "cost-state", "sessionId": "s", "totalCostUSD": cost, "modelUsage": models},
        separators=(",", ":"),
    )


FIRST, SECOND = note(10, 0.5), note(30, 1.5)


@pytest.mark.parametrize(
    ("lines", "prompt", "cost"),
    [
        ([], 0, 0.0),
        (['{"type":"user"}', "no JSON"], 0, 0.0),
        ([FIRST, '{"type":"user","message":"of {\\"type\\":\\"cost-state\\""}'], 10, 0.5),
        ([FIRST, SECOND], 30, 1.5),
        ([FIRST, SECOND[:40]], 10, 0.5),
        ([SECOND[:40]], 0, 0.0),
        ([FIRST, SECOND[:40] + '{"type":"user"}'], 10, 0.5),
        ([FIRST, '{"type":"cost-state"}'], 10, 0.5),
        ([FIRST, note("many", 1.5)], 10, 0.5),
    ],
)
def test_the_last_note_that_can_be_read_counts(
    lines: list[str], prompt: int, cost: float, tmp_path: Path
) -> None:
    folders, project = Folders(*[tmp_path] * 4), tmp_path / "projects" / "p"
    project.mkdir(parents=True)
    assert noted_total(folders, "s") is None

    (project / "s.jsonl").write_text("\n".join(lines))

    assert noted_total(folders, "s") == Usage(prompt=prompt, cost_usd=cost)
