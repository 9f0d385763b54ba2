"""The commands that start a run, as documents and `stepwise dev` show them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from cli.dev import example_start

ROOT = Path(__file__).resolve().parents[2]
SHOWN = [
    (page.name, line.strip().removeprefix("$ "))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for line in re.sub(r" *\\\n *", " ", page.read_text(encoding="utf-8")).splitlines()
    if re.match(r"(\$ )?temporal workflow (start|execute) ", line.strip())
]
STARTS = [*SHOWN, ("stepwise dev", shlex.join(example_start("stepwise")))]


def test_the_documents_show_how_a_run_is_started() -> None:
    assert {page for page, _ in SHOWN} >= {"README.md", "humans.md", "operations.md"}


@pytest.mark.parametrize(("page", "typed"), STARTS)
def test_a_start_says_its_task_as_its_summary_too(page: str, typed: str) -> None:
    words = shlex.split(typed)
    given = {
        word: words[at + 1] for at, word in enumerate(words) if word.startswith("--") and at + 1 < len(words)
    }

    assert "--fail-existing" in words, page
    assert given["--type"] == "Flow"
    assert given["--static-summary"] == json.loads(given["--input"])["task"]
