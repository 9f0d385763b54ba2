"""One table: every check with every transport; a cell holds, or cannot since the transport does not claim its flag."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from benches import BENCHES, NAMES
from stub_bench import StubBench

from system import processes
from transports import registry
from transports.conformance import CHECKS, Check, claims, prove, unproved, without_scenario

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transports.md"


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


def shown(bench: Callable[[Path], StubBench]) -> Any:
    """Return the test that the page shows for a new transport, with this bench."""
    _, _, rest = PAGE.read_text().partition("```python\n")
    names: dict[str, Any] = {"MyBench": bench}
    exec(rest.partition("```")[0], names)  # noqa: S102 - it is our own page
    return names["test_mine_holds"]


async def test_the_test_that_the_page_shows_runs_checks_and_leaves_none_out(tmp_path: Path) -> None:
    check = next(one for one in CHECKS if one.name == "observes_tools")
    await shown(StubBench)(check, tmp_path)
    with pytest.raises(AssertionError):
        await shown(partial(StubBench, behaviours=frozenset()))(check, tmp_path)
