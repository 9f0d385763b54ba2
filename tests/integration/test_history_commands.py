"""``runs``, ``show``, ``tail`` and ``prune`` as processes, over runs that really happened."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, UNITTEST, Rig, _rig, eventually, stepwise
from flow_kit import OK, flow, gate, hold, linear, make_repository, script, step, turn, write
from run_kit import READ_ONLY, TWO_STEPS, approved, ended, start, tailing, update, waiting, working
from temporalio.client import WorkflowFailureError

from schemas.run import FlowResult
from store.blobs import FileBlobs
from store.errors import NotStored
from store.evidence import Evidence
from store.receipts import Receipts
from store.redaction import Redactor
from store.retention import Retention
from system.devserver import DevServer

NO_SERVER = {"TEMPORAL_ADDRESS": "127.0.0.1:1"}
HELLO = {"do": "say", "text": "hello from the agent"}


@pytest.fixture(scope="module")
def office(server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig whose worker knows a flow that another one follows."""
    folder = tmp_path_factory.mktemp("office")
    (folder / "flows").mkdir()
    for one in (
        flow(step("only", gates=[gate("there")]), name="first", on_complete={"flow": "second"}),
        flow(step("only", gates=[gate("there")]), name="second"),
    ):
        (folder / "flows" / one["name"]).write_text(one["text"])
    made = asyncio.run(_rig(server, folder, f"office-{os.urandom(4).hex()}"))
    made.worker(STEPWISE_FLOW_PATHS=str(folder / "flows"))
    try:
        yield made
    finally:
        made.kill_all()


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one file; no test changes it."""
    return make_repository(tmp_path_factory.mktemp("repos") / "small")


@pytest.fixture(scope="module")
def past(office: Rig, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FlowResult]:
    """Runs that ended in every way there is, and one that waits; the results of those that have one."""
    return asyncio.run(_past(office, repo, tmp_path_factory.mktemp("past")))


async def _past(rig: Rig, repo: Path, folder: Path) -> dict[str, FlowResult]:
    calc = folder / "calc"
    await asyncio.to_thread(
        subprocess.run, [sys.executable, str(ROOT / "examples/demo_repo.py"), str(calc)], check=True, capture_output=True
    )  # fmt: skip
    never = script(only=turn(write("half", "x\n"), HELLO, hold(folder / "never")))
    params = {"test": " ".join(UNITTEST)}
    rig.start("demo", {"flow": "fix", "repo": str(calc), "task": "t", "params": params, "scenario": "demo"})
    rig.start("chain", {"flow": "first", "repo": str(repo), "task": "t", "scenario": script(only=turn(OK))})
    rig.start("bad", {"flow": "fix", "repo": "/nowhere", "task": "t", "scenario": "demo"})
    start(rig, "asks", repo, approved("after"), script(only=turn(OK)))
    start(rig, "aborted", repo, TWO_STEPS, never)
    start(rig, "cut", repo, TWO_STEPS, never)
    late = {"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": never}
    await rig.client.start_workflow(
        "Flow", late, id="late", task_queue=rig.task_queue, execution_timeout=timedelta(seconds=8)
    )
    await _heard(rig, "aborted")
    await update(rig, "aborted", "abort", {"reason": "enough", "by": "mia"})
    await _heard(rig, "cut")
    await rig.client.get_workflow_handle("cut").terminate("no longer needed")
    await waiting(rig, "asks", "approval")
    results = {name: await ended(rig, name, "verified") for name in ("demo", "chain")}
    await ended(rig, "aborted", "stopped")
    spool = rig.folder / "disk" / "spool"
    with pytest.raises(WorkflowFailureError):
        await rig.client.get_workflow_handle("late").result()
    await asyncio.to_thread(eventually, lambda: not any(spool.iterdir()))
    return dict(results)


async def _heard(rig: Rig, name: str) -> None:
    """Wait until an agent has said hello."""
    logs = rig.folder / "disk" / "spool"
    await working(rig, name)
    await asyncio.to_thread(
        eventually, lambda: any("hello" in log.read_text() for log in logs.glob(f"{name}-*/events.jsonl"))
    )


def cli(rig: Rig, *argv: str, disk: str = "disk", **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = stepwise(*argv, env=rig.env(disk, **env))
    assert "Traceback" not in done.stderr
    return done


def states(rig: Rig, *options: str, **env: str) -> dict[str, str]:
    """Return what `stepwise runs` says of each workflow of this rig."""
    ours = {path.name for path in (rig.store / "runs").iterdir()}
    rows = json.loads(cli(rig, "runs", "--limit", "0", "--json", *options, **env).stdout)
    return {
        row["workflow_id"]: row["state"]
        for row in rows
        if row["run_id"] in ours or row["workflow_id"] == "bad"
    }


# runs


def test_every_end_has_its_name_also_those_that_nothing_was_stored_of(
    office: Rig, past: dict[str, FlowResult]
) -> None:
    assert past
    # A list of the server lags behind.
    eventually(lambda: states(office)["late"] == "timed_out")
    assert states(office) == {
        "demo": "verified",
        "chain": "verified",
        "aborted": "stopped",
        "asks": "waiting:approval",
        "cut": "terminated",
        "late": "timed_out",
        "bad": "refused",
    }
    assert set(states(office, "--waiting")) == {"asks"}
    # The server has runs of other tests too.
    found = json.loads(cli(office, "runs", "--flow", "second", "--json").stdout)
    assert ("", True) in [(one["step"], one["over"]) for one in found if one["workflow_id"] == "chain"]


def test_without_the_server_the_store_is_listed(office: Rig, past: dict[str, FlowResult]) -> None:
    assert past
    done = cli(office, "runs", **NO_SERVER)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1
    found = states(office, **NO_SERVER)
    assert (found["asks"], found["cut"], found["demo"]) == ("waiting:approval", "running", "verified")
    assert "bad" not in found
    elsewhere = cli(office, "runs", TEMPORAL_NAMESPACE="nowhere")
    assert elsewhere.returncode == 0
    assert "the server refused to list runs" in elsewhere.stderr
    assert "waiting:approval" in elsewhere.stdout
    assert cli(office, "prune", "--keep", "0", TEMPORAL_NAMESPACE="nowhere").returncode == 2


# show


def test_a_finished_run_is_shown_whole_and_its_sums_are_those_of_its_result(
    office: Rig, past: dict[str, FlowResult]
) -> None:
    result = past["demo"]
    shown = json.loads(cli(office, "show", "demo", "--json").stdout)
    journal = [event["seq"] for event in shown["events"] if event["source"] == "journal"]
    assert journal == list(range(1, len(journal) + 1))
    assert {event["source"] for event in shown["events"]} == {"journal", "agent", "receipt"}
    assert shown["run"]["receipts_head"] == result.receipts_head
    assert shown["total"]["tokens"] == result.usage.total
    (implement,) = [one for one in shown["steps"] if one["step"] == "implement"]
    assert (implement["visits"], implement["gates"]["tests"]) == (2, {"before": "FAILED", "after": "passed"})
    text = cli(office, "show", result.run_id[:-2]).stdout
    assert "gate tests FAILED (exit 1); before the run it FAILED" in text
    assert "route advance -> review: All 1 required gates passed in iteration 2." in text
    assert text.index("stub.run") < text.index("gate tests passed") < text.index("\nsteps\n")


def test_a_stopped_run_shows_who_stopped_it_how_and_what_was_kept(
    office: Rig, past: dict[str, FlowResult]
) -> None:
    assert past
    text = cli(office, "show", "aborted").stdout
    assert "message abort by mia: accepted (reason enough)" in text
    assert "stopped by abort by mia (cooperative)" in text
    assert "partial hand-off: interrupt in work (cooperative); 1 file changed; savepoint " in text
    assert "outcome     stopped" in text


def test_a_run_that_waits_shows_until_when_and_how_to_answer(
    office: Rig, past: dict[str, FlowResult]
) -> None:
    assert past
    text = cli(office, "show", "asks").stdout
    assert "waits for   approval: is the result of only right?" in text
    assert " UTC; then the run ends as needs_human" in text
    assert "--workflow-id asks --type pending" in text


def test_a_terminated_run_shows_what_its_worker_kept(office: Rig, past: dict[str, FlowResult]) -> None:
    assert past
    text = cli(office, "show", "cut").stdout
    assert "outcome     terminated" in text
    assert "says: hello from the agent" in text
    assert "; savepoint " in text


def test_the_flows_of_a_chain_are_one_history(office: Rig, past: dict[str, FlowResult]) -> None:
    assert past
    shown = json.loads(cli(office, "show", "chain", "--json", "--brief").stdout)
    assert [(one["flow"], one["step"]) for one in shown["steps"]] == [("first", "only"), ("second", "only")]
    kinds = [event["kind"] for event in shown["events"]]
    assert (kinds.count("run_created"), kinds.count("receipt")) == (2, 2)
    assert "agent" not in {event["source"] for event in shown["events"]}


def test_a_run_that_left_nothing_in_the_store_is_told_from_one_that_never_was(
    office: Rig, past: dict[str, FlowResult]
) -> None:
    assert past
    refused = cli(office, "show", "bad")
    assert refused.returncode == 2
    assert (
        "(refused) has left nothing in this store -> temporal workflow describe --workflow-id bad"
        in refused.stderr
    )
    assert "there is no run 'nonsense'" in cli(office, "show", "nonsense").stderr


# tail


async def test_a_live_agent_is_followed_to_the_end_of_its_run_here_and_from_afar(
    office: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    spec = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))
    start(office, "live", repo, spec, script(only=turn(HELLO, hold(go), OK)))
    async with tailing(office, "live") as here, tailing(office, "live", disk="elsewhere") as afar:
        assert here.stdout is not None
        assert afar.stderr is not None
        before: list[str] = []
        while not before or "hello from the agent" not in before[-1]:
            before.append((await here.stdout.readline()).decode())
            assert before[-1], "it ended before the agent was heard"
        told = (await afar.stderr.readline()).decode()
        go.touch()
        rest, _ = await here.communicate()
        far, _ = await afar.communicate()
    lines = [line.rstrip("\n") for line in before] + rest.decode().splitlines()
    assert here.returncode == 0
    assert lines[-1] == "the run is over: verified"
    assert sum("hello from the agent" in line for line in lines) == 1
    assert [line for line in lines if "receipt of attempt" in line]
    assert "holds the run, not the worker of" in told
    assert sorted(far.decode().splitlines()) == sorted(lines)


def test_tail_ends_with_a_run_that_was_terminated_timed_out_or_refused(
    office: Rig, past: dict[str, FlowResult]
) -> None:
    assert past
    for name, outcome in (("cut", "terminated"), ("late", "timed_out"), ("bad", "refused")):
        done = cli(office, "tail", name)
        assert done.stdout.splitlines()[-1] == f"the run is over: {outcome}"
    assert "temporal workflow result --workflow-id bad" in cli(office, "tail", "bad").stderr


# prune


class Copy:
    """A copy of the rig's store and worker folder, to be pruned."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.store = folder / "store"
        self.disk = folder / "disk"
        shutil.copytree(rig.store, self.store)
        shutil.copytree(rig.folder / "disk", self.disk, symlinks=True)
        self.env = {"STEPWISE_STORE": self.store.as_uri(), "STEPWISE_DATA_DIR": str(self.disk)}

    def cli(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        return cli(self.rig, *argv, **self.env, **env)

    def pruned(self, *argv: str) -> set[str]:
        """Prune, and return the workflows whose runs went."""
        gone = json.loads(self.cli("prune", "--json", *argv).stdout)["pruned"]
        return {one["run_id"].rpartition("-")[0] for one in gone}


def test_ended_runs_go_whole_and_what_goes_on_is_not_touched(
    office: Rig, past: dict[str, FlowResult], tmp_path: Path
) -> None:
    copy = Copy(office, tmp_path)
    waiting_one = next((copy.store / "runs").glob("asks-*"))
    before = sorted(waiting_one.rglob("*"))

    planned = copy.pruned("--keep", "0", "--dry-run")
    done = copy.pruned("--keep", "0")

    assert done == planned
    assert done >= {"demo", "chain", "aborted", "cut", "late"}
    assert "asks" not in done
    assert sorted(waiting_one.rglob("*")) == before
    assert [path.name for path in (copy.disk / "runs").iterdir()] == [waiting_one.name]
    assert copy.pruned("--keep", "0") == set()
    shown = copy.cli("show", "demo")
    assert shown.returncode == 0
    assert "evidence    pruned on " in shown.stdout
    verified = copy.cli("verify", past["demo"].run_id)
    assert verified.returncode == 1
    assert "pruned on " in verified.stdout
    listed = json.loads(copy.cli("runs", "--limit", "0", "--json").stdout)
    pruned = {row["workflow_id"]: row["state"] for row in listed if row["pruned_at"]}
    assert (pruned["demo"], pruned["cut"]) == ("verified", "terminated")


def test_a_run_that_the_server_does_not_know_goes_only_when_that_is_asked_for(
    office: Rig, past: dict[str, FlowResult], tmp_path: Path
) -> None:
    assert past
    copy = Copy(office, tmp_path)
    lost = next((copy.store / "runs").glob("cut-*"))
    record = json.loads((lost / "run.json").read_text())
    record |= {"workflow_id": "lost", "run_id": "lost-0123456789ab"}
    (lost / "run.json").write_text(json.dumps(record))
    lost.rename(lost.with_name("lost-0123456789ab"))
    assert "lost" not in copy.pruned("--keep", "0")
    assert "forgotten" in copy.cli("runs", "--outcome", "forgotten").stdout
    assert copy.pruned("--keep", "0", "--forgotten") == {"lost"}


def test_a_killed_prune_leaves_nothing_unexplained_and_the_next_one_completes_it(
    office: Rig, past: dict[str, FlowResult], tmp_path: Path
) -> None:
    copy = Copy(office, tmp_path)
    run_id = past["demo"].run_id
    many = copy.store / "runs" / run_id / "fix" / "implement" / "1" / "1" / "outputs"
    many.mkdir()
    for number in range(4_000):
        (many / str(number)).write_text("x")
    evidence = Evidence(FileBlobs(copy.store, fsync=False), Redactor())
    files = Retention(evidence).used()[run_id]
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "prune", "--keep", "0"],
        cwd=ROOT, env=office.env() | copy.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    eventually(lambda: evidence.pruned_run(run_id) or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()

    for name in files:
        if not evidence.blobs.exists(f"runs/{run_id}/{name}"):
            with pytest.raises(NotStored, match="was pruned on"):
                evidence.read_key(f"runs/{run_id}/{name}")
    problems = Receipts(evidence).verify_run(run_id).problems
    assert all("pruned on" in problem.what for problem in problems)
    copy.cli("prune", "--keep", "0")
    assert Retention(evidence).used()[run_id] == {}
    assert not (copy.disk / "runs" / run_id).exists()


async def test_a_run_goes_on_to_its_end_after_all_others_were_pruned(
    office: Rig, past: dict[str, FlowResult]
) -> None:
    assert past
    done: Any = await asyncio.to_thread(cli, office, "prune", "--max-bytes", "0")
    assert done.returncode == 1
    assert "are used by runs that cannot be pruned" in done.stderr
    assert states(office)["asks"] == "waiting:approval"
    await update(office, "asks", "approve")
    await ended(office, "asks", "verified")
