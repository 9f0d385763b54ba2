"""kill -9 of the worker in every phase: on the same disk and on another, the run ends as if nothing had happened."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from chaos_kit import Counted, Link, beside, happens, killed
from conftest import Rig

from schemas.calls import RECORD, WORK
from system.leftovers import leftovers

pytestmark = pytest.mark.chaos

WORK_AGAIN = {"implement.1 begun": 1, "implement.1 ended": 1}
GATES_AGAIN = {"gate made": 1, "gate right": 1}
BASE_GATE, SECOND_GATE, FINAL_GATE = 0, 3, 6
"""Gates by the order in which an undisturbed run comes to them."""
TURN_TOKENS = 132
"""What the first turn used."""


async def test_an_undisturbed_run_has_each_effect_once(rig: Rig, demo_repo: Path) -> None:
    run = Counted(rig, demo_repo)
    rig.worker()
    run.start()
    result = await run.as_if_undisturbed()
    assert all(receipt.attempt == 1 for receipt in rig.receipts(result.run_id))


# Where the worker dies: what comes again on the same disk, and on an empty one, since its phase had not finished.
POINTS: Mapping[str, tuple[Mapping[str, int], Mapping[str, int] | None]] = {
    "acquire.cloned": ({}, None),
    "acquire.leased": ({}, None),
    "acquire.based": ({}, None),
    "acquire.done": ({}, None),
    "work.started": ({}, {}),
    "work.intent": ({}, WORK_AGAIN),
    "work.committed": ({}, WORK_AGAIN),
    "work.bundled": ({}, {}),
    "work.logged": ({}, None),
    "work.result": ({}, {}),
    "measure.gates": (GATES_AGAIN, GATES_AGAIN),
    "measure.done": ({}, {}),
    "finalize.draft": ({}, None),
    "finalize.done": ({}, {}),
    "route.done": ({}, {}),
    "record.envelope": ({}, None),
    "record.receipt": ({}, {}),
    "record.done": ({}, {}),
    "release.record": ({}, None),
    "release.done": ({}, None),
}


@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_killed_at_any_point_shows_nowhere_in_the_result(
    rig: Rig, demo_repo: Path, point: str
) -> None:
    async def disturbed(rig: Rig, disk: str, again: Mapping[str, int]) -> None:
        run = Counted(rig, demo_repo)
        first = rig.worker(STEPWISE_CRASH_AT=point)
        run.start()
        await killed(first, rig)
        if point.startswith("record."):
            assert await run.in_hand() == WORK.name, "the first record goes with the work that follows it"
        rig.worker(disk)
        # What a turn used is known where the engine has seen its end, also if it has to be made again.
        await run.as_if_undisturbed(again=again, tokens=TURN_TOKENS if again is WORK_AGAIN else 0)

    same, empty = POINTS[point]
    runs = [disturbed(beside(rig, "same"), "disk", same)]
    if empty is not None:
        runs.append(disturbed(beside(rig, "empty"), "another", empty))
    await asyncio.gather(*runs)


# Where the first dies and where the second: what comes again, since its phase had not finished.
TWICE: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("work.committed", "work.committed"): {},
    ("measure.gates", "measure.gates"): {name: 2 * count for name, count in GATES_AGAIN.items()},
    ("finalize.done", "finalize.done"): {},
    # What an agent proposed once is found, and nobody comes there again.
    ("route.done", "acquire.leased"): {},
    ("record.envelope", "record.envelope"): {},
    ("record.receipt", "record.receipt"): {},
    ("record.done", "record.done"): {},
}


@pytest.mark.parametrize(("point", "then"), TWICE)
async def test_two_workers_killed_in_a_row_show_nowhere_either(
    rig: Rig, demo_repo: Path, point: str, then: str
) -> None:
    run = Counted(rig, demo_repo)
    first = rig.worker(STEPWISE_CRASH_AT=point)
    run.start()
    await killed(first, rig)
    died_in = [await run.in_hand()]
    await killed(rig.worker(STEPWISE_CRASH_AT=then), rig)
    died_in.append(await run.in_hand())
    if point.startswith("record."):
        # With the work that follows; then on its own, since that work was lost.
        assert died_in == [WORK.name, RECORD.name]
    rig.worker()
    await run.as_if_undisturbed(again=TWICE[point, then])


@pytest.mark.parametrize("point", ["record.envelope", "record.receipt", "record.done"])
async def test_a_worker_killed_at_a_record_that_goes_with_no_work_shows_nowhere_either(
    rig: Rig, demo_repo: Path, point: str
) -> None:
    run = Counted(rig, demo_repo, approval="after")
    first = rig.worker()
    run.start()
    await run.waiting()
    first.kill()
    second = rig.worker(STEPWISE_CRASH_AT=point)
    run.tell("approve")
    await killed(second, rig)
    assert await run.in_hand() == RECORD.name
    rig.worker("another")
    await run.as_if_undisturbed()


async def test_a_worker_killed_in_the_middle_of_work_leaves_its_edits_and_its_session_on_its_disk(
    rig: Rig, demo_repo: Path
) -> None:
    run = Counted(rig, demo_repo)
    first = rig.worker()
    run.start(middle="waits")
    await run.begun()
    first.kill()
    run.go.touch()
    # The next one dies between taking the lease and noting that on its disk.
    await killed(rig.worker(STEPWISE_CRASH_AT="acquire.leased"), rig)
    rig.worker()
    result = await run.as_if_undisturbed()
    lost, resumed = run.attempts(result)
    assert (lost.session, resumed.session) == ("cold", "resumed")
    partial = run.partial(lost)
    assert partial.reason == "crash"
    assert partial.done == ["created made.txt"]


async def test_an_empty_disk_goes_on_from_the_last_savepoint(rig: Rig, demo_repo: Path) -> None:
    run = Counted(rig, demo_repo)
    first = rig.worker()
    run.start(middle="waits")
    await run.begun()
    first.kill()
    second = rig.worker()
    await run.attempt_begun(2)
    second.kill()
    rig.worker("another")
    await run.begun("another")
    run.go.touch()
    result = await run.as_if_undisturbed(again={"implement.1 begun": 1}, tokens=110)
    first_lost, then_lost, last = run.attempts(result)
    assert (first_lost.session, last.session) == ("cold", "cold")
    savepoint = run.partial(first_lost).savepoint
    assert savepoint is not None
    assert run.partial(then_lost).savepoint == savepoint
    assert run.partial(then_lost).done == ["created made.txt"]


@pytest.mark.parametrize(
    ("gate", "disk"),
    [(BASE_GATE, "disk"), (SECOND_GATE, "disk"), (FINAL_GATE, "disk"), (FINAL_GATE, "another")],
)
async def test_a_worker_killed_while_a_gate_runs_leaves_nothing_of_it(
    rig: Rig, demo_repo: Path, gate: int, disk: str
) -> None:
    run = Counted(rig, demo_repo)
    run.hold_gate(gate)
    first = rig.worker()
    run.start()
    run_id = await rig.run_id(run.workflow_id)
    await run.holding()
    first.kill()
    await happens(lambda: not leftovers(run_id), rig)
    run.hold.unlink()
    rig.worker(disk)
    result = await run.as_if_undisturbed(again={"gate made": 1} if gate == SECOND_GATE else {})
    finals = [one.execution_status for one in run.attempts(result, "_final")]
    assert finals == (["failed", "succeeded"] if gate == FINAL_GATE else ["succeeded"])


async def test_no_child_of_an_agent_outlives_its_worker(rig: Rig, demo_repo: Path) -> None:
    run = Counted(rig, demo_repo)
    first = rig.worker()
    run.start(middle="hangs")
    run_id = await rig.run_id(run.workflow_id)
    await run.begun()
    assert leftovers(run_id)
    first.kill()
    await happens(lambda: not leftovers(run_id), rig)
    rig.worker()
    await run.as_if_undisturbed()


async def test_a_wait_for_a_person_outlives_its_worker(rig: Rig, demo_repo: Path) -> None:
    async def approved(rig: Rig) -> None:
        run = Counted(rig, demo_repo, approval="after")
        first = rig.worker()
        run.start()
        await run.waiting()
        first.kill()
        rig.worker("another")
        run.tell("approve")
        await run.as_if_undisturbed()

    async def paused(rig: Rig) -> None:
        run = Counted(rig, demo_repo)
        first = rig.worker()
        run.start(middle="waits")
        await run.begun()
        run.tell("pause")
        await rig.until(run.workflow_id, lambda status: bool(status["pause_requested"]))
        run.go.touch()
        await run.waiting()
        first.kill()
        rig.worker()
        run.tell("resume")
        await run.as_if_undisturbed()

    await asyncio.gather(approved(beside(rig, "approved")), paused(beside(rig, "paused")))


async def test_a_worker_that_returns_to_a_run_that_is_anothers_drops_its_copy_and_disturbs_nothing(
    rig: Rig, demo_repo: Path
) -> None:
    run = Counted(rig, demo_repo)
    first = rig.worker()
    run.start(middle="waits")
    run_id = await rig.run_id(run.workflow_id)
    await run.begun()
    first.kill()
    rig.worker("another")
    await run.begun("another")
    run.hold_gate(2)
    run.go.touch()
    await run.holding()
    working = leftovers(run_id)
    assert working
    rig.worker()
    await happens(lambda: not (rig.folder / "disk" / "runs" / run_id).exists(), rig)
    assert leftovers(run_id) == working
    run.hold.unlink()
    await run.as_if_undisturbed(again={"implement.1 begun": 1})


async def test_a_worker_that_was_cut_off_writes_nothing_once_another_has_its_run(
    rig: Rig, demo_repo: Path
) -> None:
    run = Counted(rig, demo_repo)
    async with Link(rig.server.address) as link:
        first = rig.worker(TEMPORAL_ADDRESS=link.address)
        run.start(middle="waits")
        await run.begun()
        first.send_signal(signal.SIGSTOP)
        await link.cut()
        rig.worker("another")
        await run.begun("another")
        await link.mend()
        first.send_signal(signal.SIGCONT)
        await happens(lambda: "LeaseLost" in rig.log(), rig)
        run.go.touch()
        result = await run.as_if_undisturbed(again={"implement.1 begun": 1})
        lost, _ = run.attempts(result)
        assert lost.transcript is None
        path = f"runs/{lost.run_id}/counted/implement/1/1/"
        written = {key.removeprefix(path) for key in rig.evidence.blobs.keys(path)}
        assert written == {"envelope.json", "handoff_partial.json", "receipt.json", "work.json"}
