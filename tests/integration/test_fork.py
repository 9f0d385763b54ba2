"""Forks: runs that begin where another one stood before one of its steps."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import UNITTEST, Rig, _rig
from flow_kit import (
    OK,
    failure,
    file_at,
    files_at,
    flow,
    gate,
    git,
    hold,
    left_on_disk,
    linear,
    make_repository,
    script,
    step,
    transcript_of,
    turn,
    write,
)
from fork_kit import LOOPING, TWO_TRIES, command, fork, forked, looped, record, refused, to_file, visits
from run_kit import READ_ONLY, approved, ended, resume, said, start, update, waiting

from store.receipts import Receipts
from system.devserver import DevServer


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the worker looks for flows: two that follow each other."""
    folder = tmp_path_factory.mktemp("flows")
    first = flow(step("only", gates=[gate("there")]), name="first", on_complete={"flow": "second"})
    second = flow(step("only", linear("end")), step("end", **READ_ONLY), name="second")
    for one in (first, second):
        (folder / one["name"]).write_text(one["text"])
    return folder


@pytest.fixture(scope="module")
def desk(server: DevServer, tmp_path_factory: pytest.TempPathFactory, flows: Path) -> Iterator[Rig]:
    """A rig whose one worker all tests share that do not kill theirs; it knows the chained flows."""
    made = asyncio.run(_rig(server, tmp_path_factory.mktemp("forks"), f"forks-{os.urandom(4).hex()}"))
    made.worker(STEPWISE_FLOW_PATHS=str(flows))
    try:
        yield made
    finally:
        made.kill_all()


@pytest.fixture(autouse=True)
def _here(desk: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find what the desk has."""
    for name in [name for name in os.environ if name.startswith(("STEPWISE_", "TEMPORAL_"))]:
        monkeypatch.delenv(name)
    for name, value in desk.env().items():
        monkeypatch.setenv(name, value)


async def test_flow_fix_is_forked_from_review_when_repository_and_clone_are_gone(
    desk: Rig, demo_repo: Path
) -> None:
    given = {"task": "mean() is wrong", "params": {"test": UNITTEST}, "scenario": "demo"}
    desk.start("fix-it", {"flow": "fix", "repo": str(demo_repo), **given})
    parent = await ended(desk, "fix-it", "verified")
    assert parent.git is not None
    before = record(desk, parent.run_id)
    shutil.rmtree(demo_repo)
    shutil.rmtree(desk.folder / "disk" / "runs" / parent.run_id)

    ids = await fork("fix-it", "--from", "review", "--task", "look again")
    assert ids["workflow_id"] == "fix-it-fork-1"
    result = await forked(desk, ids, "verified")

    assert visits(result.receipts) == [("review", 1), ("finish", 1)]
    assert result.git is not None
    assert (result.git.base, result.git.head, result.git.tree) == (
        parent.git.base, parent.git.head, parent.git.tree
    )  # fmt: skip
    assert ids["forked_from"]["commit"] == parent.git.head
    told = transcript_of(desk, result.receipts[0])
    assert "look again" in told
    assert "mean() counts every value and refuses an empty sequence" in told
    after = record(desk, parent.run_id)
    assert after == before.model_copy(update={"forks": after.forks})
    assert Receipts(desk.evidence).verify_run(parent.run_id, parent.receipts_head).ok


async def test_flow_fix_is_forked_from_its_first_step_with_another_scenario(
    desk: Rig, demo_repo: Path, tmp_path: Path
) -> None:
    given = {"task": "mean() is wrong", "params": {"test": UNITTEST}, "scenario": "demo"}
    desk.start("fix-anew", {"flow": "fix", "repo": str(demo_repo), **given})
    parent = await ended(desk, "fix-anew", "verified")
    assert parent.git is not None

    play = to_file(tmp_path, script(implement=turn(write("notes.md", "n\n")), review=turn(), finish=turn()))
    tests = "--param", "test=test -f notes.md"
    argv = ["fix-anew", "--from", "implement", "--visit", "1", "--scenario", play, *tests]
    result = await forked(desk, await fork(*argv, "--input", "approval=auto"), "verified")

    assert visits(result.receipts) == [("implement", 1), ("review", 1), ("finish", 1)]
    assert result.git is not None
    assert result.git.base == parent.git.base
    assert git(result.git.workspace, "rev-parse", f"{result.git.head}^") == parent.git.base
    # The gate is another one, so nobody has measured it on the base.
    assert [one.before for one in result.receipts[0].gates] == [None]


async def test_a_second_visit_begins_with_what_the_first_left_and_its_gate_output(
    desk: Rig, repo: Path
) -> None:
    parent = await looped(desk, "again", repo)
    first = parent.receipts[0].git
    assert first is not None

    ids = await fork(parent.run_id, "--from", "implement", "--task", "another way")
    result = await forked(desk, ids, "verified")

    assert (ids["forked_from"]["visit"], ids["forked_from"]["commit"]) == (2, first.commit_after)
    assert visits(result.receipts)[:2] == [("implement", 1), ("implement", 2)]
    assert [one.iteration for one in result.receipts[:2]] == [1, 2]
    told = transcript_of(desk, result.receipts[0])
    assert "What the first try says." in told
    assert "What the second try says." not in told
    assert "Gates that failed after the last attempt" in told
    assert [one.before.passed for one in result.receipts[0].gates if one.before] == [False]
    assert result.git is not None
    assert git(result.git.workspace, "merge-base", result.git.head, first.commit_after) == first.commit_after
    # The parent's commits stay the parent's.
    runs = git(
        result.git.workspace, "log", "--format=%(trailers:key=Stepwise-Run,valueonly)", result.git.head
    )
    assert runs.split() == [result.run_id, parent.run_id]


async def test_gates_of_steps_before_the_fork_must_hold_at_its_end(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    await looped(desk, "owing", repo)
    for name, work, outcome in (
        ("same", [], "verified"),
        ("more", [write("more", "m\n")], "verified"),
        ("broken", [{"do": "run", "argv": ["rm", "ok"]}], "unverified"),
    ):
        play = to_file(tmp_path, script(implement=turn(), polish=turn(*work)))
        argv = ["owing", "--from", "polish", "--scenario", play, "--workflow-id", f"owing-{name}"]
        result = await forked(desk, await fork(*argv), outcome)
        measured = [] if name == "same" else [("_final", 1)]
        assert visits(result.receipts) == [("polish", 1), ("end", 1), *measured]
        if outcome == "unverified":
            assert result.summary == "failed on the final tree: implement/there"


async def test_a_fork_without_changes_from_the_base_has_nothing_to_do(desk: Rig, repo: Path) -> None:
    spec = flow(step("look", linear("end")), step("end", **READ_ONLY))
    start(desk, "idle", repo, spec)
    await ended(desk, "idle", "nothing_to_do")
    result = await forked(desk, await fork("idle", "--from", "end"), "nothing_to_do")
    assert result.git is not None
    assert result.git.head == result.git.base
    assert record(desk, result.run_id).newest is None


async def test_another_flow_owes_the_gates_of_the_first_one_too(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    await looped(desk, "other", repo)
    spec = flow(
        step("polish", linear("check")),
        step("check", gates=[gate("more", "test", "-f", "more")]),
        name="fresh",
    )
    flow_file = to_file(tmp_path, spec)
    play = to_file(tmp_path, script(polish=turn(write("more", "m\n"))))
    argv = ["other", "--from", "polish", "--flow", flow_file, "--scenario", play]
    result = await forked(desk, await fork(*argv), "verified")
    assert [(one.flow_key, one.step_id) for one in result.receipts] == [
        ("fresh", "polish"), ("fresh", "check"), ("small", "_final")
    ]  # fmt: skip
    assert [one.name for one in result.receipts[2].gates] == ["implement/there"]


async def test_a_flow_of_the_same_id_says_what_its_gates_are_now(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    await looped(desk, "mended", repo)
    spec = json.loads(LOOPING["text"])
    spec["steps"][0]["gates"] = [gate("there", "test", "-f", "first")]
    mended = to_file(tmp_path, {"name": "small.yaml", "text": json.dumps(spec)})
    play = to_file(tmp_path, script(implement=turn(), polish=turn({"do": "run", "argv": ["rm", "ok"]})))
    result = await forked(
        desk, await fork("mended", "--from", "polish", "--flow", mended, "--scenario", play), "verified"
    )
    assert [one.name for one in result.receipts[-1].gates] == ["implement/there"]


async def test_a_step_that_a_person_skipped_owes_nothing(desk: Rig, repo: Path, tmp_path: Path) -> None:
    start(desk, "skipping", repo, LOOPING, script(implement=turn(can_further_iteration_help="no")))
    await waiting(desk, "skipping", "human")
    await resume(desk, "skipping", action="skip")
    await ended(desk, "skipping")
    play = to_file(tmp_path, script(implement=turn(), polish=turn(write("more", "m\n"))))
    result = await forked(desk, await fork("skipping", "--from", "polish", "--scenario", play), "unverified")
    assert result.summary == "no required gate was measured"


async def test_a_waiting_run_is_forked_and_goes_on_undisturbed(desk: Rig, repo: Path, tmp_path: Path) -> None:
    spec = flow(
        step("only", linear("end"), gates=[gate("there")]), step("end", approval="before", **READ_ONLY)
    )
    start(desk, "patient", repo, spec, script(only=turn(OK)))
    status = await waiting(desk, "patient", "approval")
    before = record(desk, status["run_id"])

    # Of the step it waits before, no attempt was made yet.
    asking = await fork("patient", "--from", "end")
    auto = await forked(desk, await fork("patient", "--from", "end", "--input", "approval=auto"), "verified")
    play = to_file(tmp_path, script(only=turn(OK, write("more", "m\n"))))
    await forked(
        desk,
        await fork("patient", "--from", "only", "--scenario", play, "--input", "approval=auto"),
        "verified",
    )
    assert visits(auto.receipts) == [("end", 1)]

    during = record(desk, status["run_id"])
    assert during == before.model_copy(update={"forks": during.forks})
    assert len(during.forks) == 3
    await update(desk, "patient", "approve")
    parent = await ended(desk, "patient", "verified")
    assert [one.run_id for one in record(desk, parent.run_id).forks] == [one.run_id for one in during.forks]
    await waiting(desk, asking["workflow_id"], "approval")
    await update(desk, asking["workflow_id"], "approve")
    await forked(desk, asking, "verified")


async def test_a_running_step_is_forked_with_the_commit_it_began_with(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    play = script(implement=turn(OK), polish=turn(write("half", "h\n"), hold(tmp_path / "go")))
    start(desk, "busy", repo, LOOPING, play)
    await desk.until("busy", lambda now: (now.get("step"), now.get("phase")) == ("polish", "work"))
    other = to_file(tmp_path, script(implement=turn(), polish=turn(write("other", "o\n"))))
    result = await forked(desk, await fork("busy", "--from", "polish", "--scenario", other), "verified")
    assert {"ok", "other"} <= set(files_at(result.git))
    assert "half" not in files_at(result.git)
    (tmp_path / "go").touch()
    await ended(desk, "busy", "verified")


async def test_a_fork_is_forked_when_every_run_before_it_is_gone_from_disk(desk: Rig, tmp_path: Path) -> None:
    own = make_repository(tmp_path / "repo")
    parent = await looped(desk, "elder", own)
    play = to_file(
        tmp_path, script(implement=turn(), polish=turn(write("p", "1\n"), summary="What polish says."))
    )
    child = await forked(desk, await fork("elder", "--from", "polish", "--scenario", play), "verified")
    shutil.rmtree(own)
    for gone in (parent, child):
        shutil.rmtree(desk.folder / "disk" / "runs" / gone.run_id)

    ids = await fork("elder-fork-1", "--from", "end")
    grandchild = await forked(desk, ids, "verified")
    assert ids["workflow_id"] == "elder-fork-1-fork-1"
    assert visits(grandchild.receipts) == [("end", 1), ("_final", 1)]
    assert [one.name for one in grandchild.receipts[1].gates] == ["implement/there"]
    told = transcript_of(desk, grandchild.receipts[0])
    for words in ("What the first try says.", "What the second try says.", "What polish says."):
        assert words in told
    assert {"first", "ok", "p"} <= set(files_at(grandchild.git))

    again = await forked(desk, await fork("elder-fork-1", "--from", "polish"), "verified")
    assert file_at(again.git, "p") == "1"
    assert again.git is not None
    assert parent.git is not None
    assert git(again.git.workspace, "rev-parse", f"{again.git.head}^") == parent.git.head


async def test_a_step_of_a_chained_flow_is_forked(desk: Rig, repo: Path, tmp_path: Path) -> None:
    given = {"task": "t", "scenario": script(only=[turn(OK), turn(write("more", "m\n"))])}
    desk.start("chain", {"flow": "first", "repo": str(repo), **given})
    parent = await desk.result("chain")
    assert parent.outcome == "verified"
    play = to_file(tmp_path, script(only=turn(write("mine", "m\n"))))

    newest = await forked(desk, await fork("chain", "--from", "only", "--scenario", play), "verified")
    assert [(one.flow_key, one.step_id) for one in newest.receipts] == [
        ("second", "only"), ("second", "end"), ("first", "_final")
    ]  # fmt: skip
    assert {"ok", "mine"} <= set(files_at(newest.git))

    play = to_file(tmp_path, script(only=turn(OK, write("mine", "m\n"))))
    argv = ["chain", "--from", "first:only", "--scenario", play, "--workflow-id", "chain-anew"]
    ids = await fork(*argv)
    whole = await desk.result("chain-anew")
    assert (whole.outcome, whole.run_id) == ("verified", ids["run_id"])
    assert [(one.flow_key, one.step_id) for one in desk.receipts(whole.run_id)] == [
        ("first", "only"), ("second", "only"), ("second", "end")
    ]  # fmt: skip
    assert [one.get("forked_from") is None for one in said(desk, whole.run_id, "run_created")] == [
        False,
        True,
    ]

    assert "choose one of first:only #1, second:only #1, second:end #1" in await refused(
        "chain", "--from", "first:end"
    )


async def test_a_shallow_repository_is_forked(desk: Rig, repo: Path, tmp_path: Path) -> None:
    git(
        repo,
        "-c",
        "user.name=T",
        "-c",
        "user.email=t@example.invalid",
        "commit",
        "--allow-empty",
        "-qm",
        "more",
    )
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{repo}", str(shallow)], check=True)
    parent = await looped(desk, "flat", shallow)
    shutil.rmtree(shallow)
    result = await forked(desk, await fork("flat", "--from", "implement"), "verified")
    assert result.git is not None
    assert parent.git is not None
    assert result.git.base == parent.git.base


async def test_a_workflow_id_that_is_taken_is_refused_and_made_up_ones_count_on(
    desk: Rig, repo: Path
) -> None:
    start(desk, "taken", repo, approved("before"), script(only=turn(OK)))
    await waiting(desk, "taken", "approval")
    first = await fork("taken", "--from", "only", "--workflow-id", "mine")
    line = await refused("taken", "--from", "only", "--workflow-id", "mine")
    assert "a run with workflow id mine is going on" in line
    assert "choose another --workflow-id" in line
    made_up = [(await fork("taken", "--from", "only"))["workflow_id"] for _ in range(2)]
    assert made_up == ["taken-fork-1", "taken-fork-2"]
    for name in (first["workflow_id"], *made_up, "taken"):
        await desk.client.get_workflow_handle(name).signal("abort")
        await desk.result(name)


async def test_a_fork_is_started_with_the_temporal_cli_alone(desk: Rig, repo: Path) -> None:
    parent = await looped(desk, "by-hand", repo)
    at = {"run_id": parent.run_id, "step": "polish", "visit": 1}
    start(desk, "by-hand-2", repo, LOOPING, TWO_TRIES, fork=at)
    result = await desk.result("by-hand-2")
    assert result.outcome == "verified"
    assert visits(desk.receipts(result.run_id)) == [("polish", 1), ("end", 1)]

    for name, fields, words in (
        ("no-run", {"run_id": "by-hend-1"}, "the store knows no run 'by-hend-1'"),
        (
            "no-step",
            {"step": "missing"},
            "flow small has no step 'missing' (its steps are implement, polish, end)",
        ),
        (
            "no-visit",
            {"visit": 7},
            "has no visit 7 of polish (choose one of implement #1 #2, polish #1, end #1)",
        ),
        ("workflow", {"run_id": "by-hand"}, f"did you mean {parent.run_id}?"),
    ):
        start(desk, f"bad-{name}", repo, LOOPING, TWO_TRIES, fork={**at, **fields})
        error = await failure(desk, f"bad-{name}")
        assert error.type == "BadFlowInput"
        assert words in error.message
        assert left_on_disk(desk, f"bad-{name}") == []
    start(desk, "bad-repo", repo.parent, LOOPING, TWO_TRIES, fork=at)
    assert "a fork works on its parent's repository" in (await failure(desk, "bad-repo")).message


async def test_a_pruned_run_is_refused(desk: Rig, repo: Path) -> None:
    parent = await looped(desk, "old", repo)
    code, _, err = await command("prune", "--older", "0d")
    assert code == 0, err
    assert f"run {parent.run_id} cannot be forked: its evidence was pruned on" in await refused(
        "old", "--from", "polish"
    )
