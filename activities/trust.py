"""Which repositories may bring instructions, settings and programs of their own to an agent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schemas.run import FlowInput


def is_listed(repo: str, trusted_repos: Sequence[str]) -> bool:
    """Whether a repository, a path or a URL, is one of those the worker trusts."""
    places = (str(Path(place).expanduser()) if place.startswith("~") else place for place in trusted_repos)
    return _named(repo) in {_named(place) for place in places}


def is_trusted(given: FlowInput | None, trusted_repos: Sequence[str]) -> bool:
    """Whether whoever started the run and the worker both trust its repository."""
    return given is not None and given.trusted and is_listed(given.repo, trusted_repos)


def _named(place: str) -> str:
    return str(Path(place).resolve()) if place.startswith("/") else place.rstrip("/")
