"""The page for people says of every message in every state what real runs answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from message_table import CASES, MESSAGES, make, render, stands

from system.devserver import DevServer
from workflows.messages import MESSAGES as TABLE


@pytest.mark.timeout(300)
async def test_the_table_of_the_page_is_what_runs_answer(server: DevServer, tmp_path: Path) -> None:
    assert {name for _, name, _ in MESSAGES} == set(TABLE), "every message has a column"
    rows = await make(server, tmp_path)
    assert [name for name, _ in rows] == [case.name for case in CASES]
    assert render(rows) == stands(), (
        "make it anew: .venv/bin/python tests/integration/message_table.py --write"
    )
