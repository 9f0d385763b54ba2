"""Which repositories are trusted: those the worker names, however a path to them is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.trust import is_listed, is_trusted
from schemas.run import FlowInput


@pytest.mark.parametrize(
    ("repo", "trusted", "listed"),
    [
        ("{home}/repo", "{home}/repo", True),
        ("{home}/repo/", "{home}/repo", True),
        ("{home}/repo", "~/repo", True),
        ("{home}/link", "~/repo", True),
        ("~/repo", "~/repo", False),
        ("{home}/repo/../other", "~/repo", False),
        ("{home}/repository", "~/repo", False),
        ("https://host/a/repo/", "https://host/a/repo", True),
        ("https://host/a/repo", "https://host/a", False),
    ],
)
def test_a_repository_is_listed_by_what_its_name_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo: str, trusted: str, listed: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "repo").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "repo")
    given = repo.format(home=tmp_path)
    places = [trusted.format(home=tmp_path)]
    assert is_listed(given, places) is listed
    asked = FlowInput(flow="fix", repo=given, task="t", trusted=True)
    assert is_trusted(asked, places) is listed
    assert not is_trusted(asked.model_copy(update={"trusted": False}), places)


def test_nobody_is_trusted_by_a_worker_that_trusts_nobody() -> None:
    assert not is_listed("/repo", [])
    assert not is_trusted(None, ["/repo"])
