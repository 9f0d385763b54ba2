"""One table: every check with every transport; a cell holds, or cannot since the transport does not claim its flag."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from benches import BENCHES, NAMES

from system import processes
from transports import registry
from transports.conformance import CHECKS, Check, claims, prove, unproved, without_scenario


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_a_transport_holds(
    name: str, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = registry.open(name)
    if not transport.is_available().ok:
        pytest.skip(transport.is_available().reason)
    with BENCHES[name](check, tmp_path, monkeypatch) as bench:
        claimed = check.claim is None or check.claim in claims(transport.capabilities)
        # What a transport has to hold its bench can show: no cell is left out for another reason.
        assert check.applies(bench) is claimed
        if claimed:
            await prove(check, bench)


@pytest.mark.parametrize("name", NAMES)
def test_a_transport_claims_nothing_that_is_not_proved(name: str) -> None:
    assert unproved(registry.open(name).capabilities) == frozenset()


def test_every_flag_has_a_scenario() -> None:
    assert without_scenario() == frozenset()


def test_every_transport_is_held_to_the_suite() -> None:
    assert set(NAMES) == set(registry.TRANSPORTS)
