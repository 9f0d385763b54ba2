"""Gates as the engine runs them, and the trees they saw."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from activities_kit import FLOW, RUN, Driver, make_worker, nothing_outlives_a_test, until
from flow_kit import git, make_repository
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from schemas.calls import MeasureOut
from system.leftovers import leftovers

JUNIT = "<testsuite><testcase name='a'/><testcase name='b'/></testsuite>"


__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


async def acquired(root: Path, *gates: str, files: Mapping[str, str] = MappingProxyType({})) -> Driver:
    repo = make_repository(root / "repo")
    for name, text in files.items():
        (repo / name).write_text(text)
    git(repo, "add", ".")
    git(repo, "commit", "-q", "--allow-empty", "-m", "files")
    listed = "".join(f"      - {{{gate}, before: false}}\n" for gate in gates)
    flow = FLOW.replace("      - {name: there, argv: [test, -f, made.txt]}\n", listed)
    driver = Driver(make_worker(root), repo, flow)
    await driver.acquire()
    return driver


async def test_a_measurement_run_twice_is_made_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    driver = await acquired(tmp_path, f"name: one, argv: [sh, -c, 'echo x >> {count}']")

    first, second = await driver.measure(), await driver.measure()

    assert first == second
    assert count.read_text() == "x\n"
    assert first.gates[0].fact.passed
    assert first.failure_signature is None


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        ("name: bad, argv: ['false']", "exit code 1"),
        ("name: bad, argv: [no-such-program]", "program not found: no-such-program"),
        ("name: bad, argv: [sleep, '1000'], timeout: 1", "timed out after 1 s"),
        ("name: bad, argv: [sh, -c, 'kill -9 $$']", "ended by signal 9"),
        ("name: bad, argv: ['true', '{report}'], parse: junit", "wrote no junit report"),
        ("name: bad, argv: [cp, README.md, '{report}'], parse: junit", "cannot be read"),
        ("name: bad, argv: [cp, empty.xml, '{report}'], parse: junit", "holds no test"),
    ],
)
async def test_what_could_not_be_seen_to_pass_has_failed_with_the_reason(
    tmp_path: Path, gate: str, reason: str
) -> None:
    driver = await acquired(tmp_path, gate, files={"empty.xml": "<testsuite/>"})

    out = await driver.measure()

    fact = out.gates[0].fact
    assert fact.measured
    assert not fact.passed
    assert fact.reason is not None
    assert reason in fact.reason
    assert out.failure_signature is not None


async def test_reports_are_read_from_the_file_the_gate_was_given(tmp_path: Path) -> None:
    driver = await acquired(
        tmp_path,
        "name: tests, argv: [cp, junit.xml, '{report}'], parse: junit",
        "name: covered, argv: [cp, coverage.xml, '{report}'], parse: coverage",
        files={"junit.xml": JUNIT, "coverage.xml": '<coverage line-rate="0.8125"/>'},
    )

    tests, covered = (run.fact for run in (await driver.measure()).gates)

    assert tests.passed
    assert tests.counts is not None
    assert tests.counts.passed == 2
    assert covered.passed
    assert covered.percent == 81.25


async def test_gates_see_a_clean_environment_of_their_own(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "name: env, argv: [env]")

    out = await driver.measure()

    assert out.gates[0].evidence is not None
    printed = driver.ctx.evidence.read(out.gates[0].evidence).decode()
    names = {line.partition("=")[0] for line in printed.splitlines() if "=" in line}
    assert {"HOME", "TMPDIR", "CI", "PYTHONDONTWRITEBYTECODE", "STEPWISE_RUN"} <= names
    assert not names & {"USER", "PYTEST_CURRENT_TEST", "VIRTUAL_ENV"}
    assert f"HOME={driver.ctx.folder(RUN).private}" in printed


async def test_the_evidence_is_redacted(tmp_path: Path) -> None:
    secret = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"
    driver = await acquired(tmp_path, "name: leak, argv: [cat, secret.txt]", files={"secret.txt": secret})

    out = await driver.measure()

    assert out.gates[0].evidence is not None
    printed = driver.ctx.evidence.read(out.gates[0].evidence).decode()
    assert secret not in printed
    assert "[redacted:" in printed


async def test_files_that_gates_leave_behind_are_named_and_show_in_the_trees(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "name: messy, argv: [touch, left.txt]")

    out = await driver.measure()

    assert out.left_behind == ["left.txt"]
    assert out.tree_before != out.tree_after
    assert not (driver.ctx.folder(RUN).workspace / "left.txt").exists()


async def test_an_interrupted_measurement_returns_what_it_has(tmp_path: Path) -> None:
    driver = await acquired(
        tmp_path,
        "name: first, argv: ['true']",
        "name: slow, argv: [sleep, '1000']",
        "name: last, argv: ['true']",
    )
    environment = ActivityEnvironment()
    task = asyncio.ensure_future(driver.measure(environment=environment))
    await until(lambda: any("slow" in key for key in _running(driver)))
    environment.cancel()

    out = await task

    assert out.stopped == "interrupt"
    assert [run.fact.measured for run in out.gates] == [True, False, False]
    assert out.gates[2].fact.reason == "stopped: interrupt"
    assert driver.ctx.results.load(driver.key(), MeasureOut) is None


async def test_a_gate_whose_guard_is_killed_is_not_measured(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "name: lost, argv: [sh, -c, 'kill -9 $PPID; sleep 1000']")

    fact = (await driver.measure()).gates[0].fact

    assert (fact.measured, fact.passed) == (False, False)
    # It may be quicker than its guard is to say that it runs.
    assert "guard was killed" in (fact.reason or "")


async def test_a_measurement_ended_by_a_shutdown_is_lost_and_not_stored(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "name: slow, argv: [sleep, '1000']")
    environment = ActivityEnvironment()
    task = asyncio.ensure_future(driver.measure(environment=environment))
    await until(lambda: bool(leftovers(RUN)))
    environment.cancel(ActivityCancellationDetails(worker_shutdown=True))

    with pytest.raises(ApplicationError) as lost:
        await task

    assert lost.value.type == "worker_shutdown"
    assert driver.ctx.results.load(driver.key(), MeasureOut) is None


async def test_the_last_measurement_runs_the_gates_it_is_given_by_name(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "name: one, argv: ['true']", "name: two, argv: ['false']")

    out = await driver.measure(driver.key("_final"), gates=["implement/two", "implement/one"])

    assert [(run.fact.name, run.fact.passed) for run in out.gates] == [
        ("implement/two", False),
        ("implement/one", True),
    ]
    with pytest.raises(ApplicationError, match="implement/three"):
        await driver.measure(driver.key("_final", visit=2), gates=["implement/three"])


async def test_the_same_failure_has_the_same_signature_in_another_attempt(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "name: bad, argv: [sh, -c, 'echo failed in $$ ms; exit 1']")

    first, second = await driver.measure(), await driver.measure(driver.key(attempt=2))

    assert first.failure_signature is not None
    assert first.failure_signature == second.failure_signature


def _running(driver: Driver) -> list[str]:
    # The gate before it has left its evidence, so the slow one runs or is about to.
    stored = driver.ctx.evidence.blobs.keys(f"{driver.key().path}/gates/")
    return ["slow"] if stored and leftovers(RUN) else []
