"""The client of the Codex app-server: when what a turn has started is gone."""

from __future__ import annotations

import pytest

from transports.codex_rpc import AppServer

OWN = frozenset({1})


async def test_a_process_that_one_look_misses_is_seen_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([OWN | {9}, OWN, OWN | {9}, OWN, OWN])
    monkeypatch.setattr(AppServer, "_tree", lambda _: next(looks))
    server = AppServer.__new__(AppServer)
    server._own = OWN

    assert await server.alone(60)
    assert list(looks) == []


async def test_what_does_not_go_is_waited_for_no_longer_than_it_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AppServer, "_tree", lambda _: OWN | {9})
    server = AppServer.__new__(AppServer)
    server._own = OWN

    assert not await server.alone(0)
