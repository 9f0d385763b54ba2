"""What a run is refused for before anything is cloned, and what is pinned when it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from activities_kit import FLOW, PERSONA, RUN, SCENARIO, Driver, make_worker
from temporalio.exceptions import ApplicationError

from schemas.calls import ResolveIn
from schemas.errors import OWN_ERROR_TYPES
from schemas.run import FlowInput, InlineFile, InlineSpec
from transports.port import Availability
from transports.stub import StubTransport


def inline(flow: str = FLOW) -> InlineSpec:
    return InlineSpec(name="small.yaml", text=flow, files={"agents/worker.md": PERSONA})


GATED = FLOW.replace("agent: worker", "agent: worker\n    approval: after", 1)


async def refusal(driver: Driver, **changes: Any) -> ApplicationError:
    with pytest.raises(ApplicationError) as refused:
        await driver.resolve(**changes)
    assert refused.value.non_retryable
    assert refused.value.type in OWN_ERROR_TYPES
    assert driver.ctx.evidence.blobs.keys("runs/") == []
    return refused.value


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(make_worker(tmp_path), tmp_path / "repo")


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"publish": "branch"}, "BadFlowInput", "publishes nothing"),
        (
            {"approval": "developer", "spec": inline(GATED)},
            "BadFlowInput",
            "needs a model transport, and step",
        ),
        ({"trusted": True}, "BadFlowInput", "STEPWISE_TRUSTED_REPOS"),
        ({"scenario": None}, "BadFlowInput", "plays a scenario and none is given"),
        ({"scenario": "no-such"}, "BadFlowInput", "no scenario is named 'no-such'"),
        ({"transport": "codex"}, "BadFlowInput", "is not offered by this worker; offered: stub (available)"),
        ({"params": {"extra": 1}}, "BadFlowInput", "no parameter 'extra'"),
        ({"spec": None, "flow": "fxi"}, "UnknownFlow", "did you mean 'fix'?"),
        ({"spec": inline("id: [")}, "FlowRefused", "small.yaml:"),
    ],
)
async def test_a_bad_start_is_refused_in_one_clear_message_and_leaves_nothing(
    driver: Driver, changes: dict[str, Any], kind: str, words: str
) -> None:
    error = await refusal(driver, **changes)

    assert error.type == kind
    assert words in error.message


async def test_all_findings_of_a_bad_flow_are_named_with_their_places(driver: Driver) -> None:
    flow = FLOW.replace("next: finish", "next: nowhere").replace("agent: worker", "agent: nobody")

    error = await refusal(driver, spec=inline(flow))

    assert error.type == "FlowRefused"
    assert "nowhere" in error.message
    assert "nobody" in error.message
    assert error.message.count("small.yaml:") >= 2


async def test_a_flow_that_holds_a_secret_is_refused(driver: Driver) -> None:
    flow = FLOW.replace(
        "objective: Close.", "objective: Use ghp_0123456789abcdefghijABCDEFGHIJ012345 to close."
    )

    assert (await refusal(driver, spec=inline(flow))).type == "FlowRefused"


async def test_an_offered_transport_that_is_not_installed_is_refused_with_the_hint(tmp_path: Path) -> None:
    class Missing(StubTransport):
        def is_available(self) -> Availability:
            return Availability(ok=False, reason="no binary", install_hint="pip install it")

    driver = Driver(make_worker(tmp_path, transports={"stub": Missing()}), tmp_path / "repo")

    error = await refusal(driver)

    assert "not available: no binary, install: pip install it" in error.message


async def test_a_list_of_transports_is_taken_where_one_of_them_can_be_used_and_all_are_offered(
    tmp_path: Path,
) -> None:
    class Missing(StubTransport):
        def is_available(self) -> Availability:
            return Availability(ok=False, reason="no binary", install_hint="pip install it")

    two = {"claude-cli": Missing(), "stub": StubTransport()}
    driver = Driver(make_worker(tmp_path, transports=two), tmp_path / "repo")

    error = await refusal(driver, transport=["stub", "codex"])
    assert "transport 'codex' is not offered by this worker" in error.message
    resolved = await driver.resolve(transport=["claude-cli", "stub"])
    assert set(map(tuple, resolved.transports.values())) == {("claude-cli", "stub")}


async def test_the_transport_of_the_start_beats_the_steps_and_the_steps_the_workers(tmp_path: Path) -> None:
    both = {"stub": StubTransport(), "claude-cli": StubTransport()}
    driver = Driver(make_worker(tmp_path, transports=both), tmp_path / "repo")
    flow = FLOW.replace("  - id: finish\n", "  - id: finish\n    transport: claude-cli\n")

    by_step = await driver.resolve(spec=inline(flow))
    driver.run_id = "other-0123456789ab"
    by_start = await driver.resolve(spec=inline(flow), transport=["claude-cli", "stub"])

    assert by_step.transports == {"implement": ["stub"], "finish": ["claude-cli"]}
    assert by_start.transports == {
        "implement": ["claude-cli", "stub"],
        "finish": ["claude-cli", "stub"],
    }
    assert by_step.offered == ["stub", "claude-cli"]


async def test_a_trusted_repository_is_honoured_when_the_worker_names_it(tmp_path: Path) -> None:
    driver = Driver(make_worker(tmp_path, trusted_repos=[str(tmp_path / "repo")]), tmp_path / "repo")

    assert (await driver.resolve(trusted=True)).spec.id == "small"


async def test_shipped_flows_and_scenarios_are_found_by_name(driver: Driver) -> None:
    resolved = await driver.resolve(spec=None, flow="fix", scenario="demo")

    assert resolved.spec.id == "fix"
    assert resolved.scenario is not None
    pinned = await driver.ctx.bundle(resolved.bundle)
    assert set(pinned.personas) == {"implementer", "reviewer", "integrator"}


async def test_a_flow_resolved_once_stays_as_it_was_pinned(driver: Driver) -> None:
    first = await driver.resolve()
    changed = FLOW.replace("Do ${task}.", "Do something else.")

    second = await driver.resolve(spec=inline(changed), scenario=InlineFile(name="s.yaml", text=SCENARIO))

    assert second == first


async def test_the_pace_of_the_worker_travels_with_the_flow(tmp_path: Path) -> None:
    driver = Driver(make_worker(tmp_path, heartbeat_s=3, schedule_to_start_s=4), tmp_path / "repo")

    pace = (await driver.resolve()).pace

    assert (pace.heartbeat_s, pace.schedule_to_start_s, pace.recover_old_worker_s) == (3, 4, 5)


async def test_a_chained_flow_is_resolved_by_its_name(driver: Driver) -> None:
    given = FlowInput.model_validate({**driver.input().model_dump(), "scenario": "noop"})

    resolved = await driver.call("resolve_flow", ResolveIn(run_id=RUN, input=given, flow="direct"))

    assert resolved.spec.id == "direct"
