"""``stepwise tail`` of the real programs: what an agent says and does is seen while its turn goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from agents_kit import AGENTS, agents
from conftest import Rig
from flow_kit import flow, gate, step
from model_servers.minds import is_structured
from model_servers.script import Reply, Run, Seen
from run_kit import ended, start, tailing
from step_kit import doing

from transports import registry

pytestmark = pytest.mark.timeout(300)
WITHIN_S: Final = 120.0
"""Only a bound: the real programs begin slowly on a machine that does other things, too."""
COMMAND: Final = "touch ok"
SAID: Final = "I do it."
FLOW: Final = flow(step("only", gates=[gate("there")]))


class Held:
    """A model that says something, has a command run, and is then silent until it is let go."""

    def __init__(self) -> None:
        self.silent = threading.Event()
        self.go = threading.Event()
        self._does = doing(Run(COMMAND))

    def __call__(self, seen: Seen) -> Reply:
        """Answer a request."""
        if seen.calls and not is_structured(seen):
            self.silent.set()
            assert self.go.wait(2 * WITHIN_S), "nobody let it go on"
        return self._does(seen)


def acts(lines: Iterable[str]) -> list[str]:
    """Return the lines that show the command as done, however its agent's tool words it."""
    return [line for line in lines if COMMAND in line and ": ok, " in line]


async def until_it_acts(tail: asyncio.subprocess.Process) -> list[str]:
    """Return what is printed up to the command's end."""
    lines: list[str] = []
    assert tail.stdout is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            while not acts(lines):
                line = (await tail.stdout.readline()).decode()
                assert line, f"it ended before its agent had acted: {lines}"
                lines.append(line)
    except TimeoutError:
        pytest.fail(f"the agent was not seen to act: {lines}")
    return lines


@pytest.mark.parametrize("name", AGENTS)
async def test_a_real_agent_is_followed_in_the_middle_of_its_turn(rig: Rig, repo: Path, name: str) -> None:
    available = registry.open(name).is_available()
    if not available.ok:
        pytest.skip(f"{available.reason}: {available.install_hint}")
    held = Held()
    with agents({name: held}) as env:
        rig.worker(**env)
        start(rig, "followed", repo, FLOW, None, transport=name)
        try:
            async with tailing(rig, "followed") as tail:
                before = await until_it_acts(tail)
                assert await asyncio.to_thread(held.silent.wait, WITHIN_S)
                assert (await rig.status("followed"))["phase"] == "work"
                held.go.set()
                rest, errors = await asyncio.wait_for(tail.communicate(), WITHIN_S)
        finally:
            held.go.set()
        await ended(rig, "followed", "verified", within_s=WITHIN_S)
    after = rest.decode().splitlines()
    assert (tail.returncode, errors) == (0, b"")
    assert not [line for line in before if "ends its turn" in line]
    assert [line for line in after if "ends its turn" in line]
    assert after[-1] == "the run is over: verified"
    assert [sum(SAID in line for line in lines) for lines in (before, after)] == [1, 0]
    assert acts(after) == []
