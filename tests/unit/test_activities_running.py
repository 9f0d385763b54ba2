"""One phase of a run at a time, each to its own end."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from activities.running import Running, Stop


async def test_phases_of_one_run_never_overlap_and_those_of_two_do() -> None:
    running = Running()
    inside: list[str] = []
    go = asyncio.Event()

    async def body(name: str) -> str:
        inside.append(name)
        await go.wait()
        inside.remove(name)
        return name

    def phase(run_id: str) -> asyncio.Future[str]:
        return asyncio.ensure_future(running.phase(run_id, lambda _: body(run_id)))

    tasks = [phase("one"), phase("one"), phase("two")]
    for _ in range(10):
        await asyncio.sleep(0)

    assert sorted(inside) == ["one", "two"]
    go.set()
    assert await asyncio.gather(*tasks) == ["one", "one", "two"]


async def test_a_cancelled_phase_is_asked_to_stop_and_what_it_returns_then_is_the_result() -> None:
    running, begun = Running(), asyncio.Event()

    async def body(stop: Stop) -> str:
        begun.set()
        reason = await stop.wait()
        await asyncio.sleep(0)
        return reason

    environment = ActivityEnvironment()

    async def phase() -> str:
        return await running.phase("one", body)

    task = asyncio.ensure_future(environment.run(phase))
    await begun.wait()
    environment.cancel(ActivityCancellationDetails(worker_shutdown=True))

    assert await task == "worker_shutdown"
    assert "one" not in running


async def test_the_first_reason_to_stop_stands() -> None:
    stop = Stop()
    stop.request("server_lost")
    stop.request("interrupt")

    assert await stop.wait() == "server_lost"


async def test_a_phase_that_was_told_to_stop_hears_that_its_worker_is_to_end_too() -> None:
    running, begun, drained = Running(), asyncio.Event(), asyncio.Event()
    environment = ActivityEnvironment()

    async def body(stop: Stop) -> str:
        begun.set()
        await stop.wait()
        environment.worker_shutdown()
        await stop.draining()
        drained.set()
        return await stop.wait()

    async def phase() -> str:
        return await running.phase("one", body)

    task = asyncio.ensure_future(environment.run(phase))
    await begun.wait()
    environment.cancel(ActivityCancellationDetails(cancel_requested=True))

    assert await task == "interrupt"
    assert drained.is_set()


async def test_a_shutdown_that_comes_as_the_second_reason_leaves_less_time() -> None:
    stop = Stop()
    stop.request("interrupt")
    hurried = asyncio.ensure_future(stop.draining())
    await asyncio.sleep(0)
    assert not hurried.done()
    stop.request("worker_shutdown")

    await hurried

    assert stop.reason == "interrupt"


async def test_stopping_a_run_waits_for_its_phases_and_says_if_one_does_not_end() -> None:
    running, go = Running(), asyncio.Event()

    async def stubborn(stop: Stop) -> str:
        await stop.wait()
        await go.wait()
        return "done"

    task = asyncio.ensure_future(running.phase("one", stubborn))
    await asyncio.sleep(0)

    assert not await running.stop_run("one", "server_lost", within_s=0.01)
    go.set()
    assert await running.stop_run("one", "server_lost", within_s=60)
    assert await task == "done"
    assert await running.stop_run("none", "server_lost", within_s=0)


async def test_an_error_of_a_phase_is_its_own_and_frees_the_run() -> None:
    running = Running()

    async def failing(_stop: Stop) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await running.phase("one", failing)

    async def fine() -> int:
        return 1

    assert await running.exclusive("one", fine) == 1
