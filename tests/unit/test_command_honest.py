"""Everyday lines beside rules that could take them for something else, and what the rules are for."""

from __future__ import annotations

import pytest

from policy.commands import judge

HONEST = (
    "kill $!",
    "kill $(cat server.pid)",
    "kill $(jobs -p)",
    "kill -9 $(pgrep -f vite)",
    "lsof -ti:3000 | xargs kill",
    "uv pip install -e '.[dev]'",
    "uv tool install -e '.[cli]'",
    "pnpm link ../x",
    "find . -not -path './.git/*' -type f -exec sed -i 's/a/b/g' {} +",
    "find . -type f ! -path './.git/*' -exec node --check {} \\;",
)
REFUSED = (
    ("kill {1..100000}", "E_LIMIT_COMMAND"),
    ("kill -9 -1", "E_CMD_KILL"),
    ("zip -T -TT 'touch x' a.zip b", "E_CMD_WRAPPER"),
    ("gpatch -d /etc x", "E_CMD_OUTSIDE"),
    ("uv run install -m 755 a .git/hooks/pre-commit", "E_PATH_PROTECTED"),
    ("npx install a .git/hooks/x", "E_PATH_PROTECTED"),
    ("find . -path './.git/*' -exec sed -i s/a/b/ {} +", "E_PATH_PROTECTED"),
    ("find . -not -name x -path './.git/*' -exec sed -i s/a/b/ {} +", "E_PATH_PROTECTED"),
)


@pytest.mark.parametrize("line", HONEST)
def test_an_everyday_line_is_allowed(line: str) -> None:
    assert judge(line, workspace="/w").decision == "allow"


@pytest.mark.parametrize(("line", "code"), REFUSED)
def test_what_the_rule_is_for_is_refused(line: str, code: str) -> None:
    verdict = judge(line, workspace="/w")
    assert (verdict.decision, verdict.code) == ("deny", code)
