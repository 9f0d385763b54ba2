"""What a person gets wrong: one clear error at once, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import UNITTEST, Rig
from flow_kit import (
    OK,
    event_types,
    failure,
    flow,
    gate,
    git,
    left_on_disk,
    make_repository,
    script,
    step,
    turn,
)
from temporalio.client import WorkflowExecutionStatus

BAD_FLOWS = sorted((Path(__file__).parent.parent / "unit" / "data" / "flows" / "bad").glob("*.yaml"))
# Faults that show only where flows are looked up by name, beside others.
IN_FOLDERS = {"wrong_id", "chain_cycle_by_others", "chain_too_deep"}
SOUND = flow(step("only", gates=[gate("there")]))


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Repositories in every state that a person may have one in."""
    top = tmp_path_factory.mktemp("repos")
    good = make_repository(top / "good", {"README.md": "A repository.\n", "sub/file.txt": "x\n"})
    dirty = make_repository(top / "dirty")
    (dirty / "README.md").write_text("changed\n")
    (dirty / "new.txt").write_text("new\n")
    empty = top / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    unborn = make_repository(top / "unborn")
    git(unborn, "checkout", "--quiet", "--orphan", "not-yet")
    git(unborn, "rm", "-r", "--quiet", "--force", ".")
    plain = top / "plain"
    plain.mkdir()
    file = top / "file"
    file.write_text("x")
    return {
        "good": good,
        "dirty": dirty,
        "empty": empty,
        "unborn": unborn,
        "plain": plain,
        "file": file,
        "sub": good / "sub",
        "missing": top / "missing",
    }


def given(place: Path, **changes: Any) -> dict[str, Any]:
    """Return a sound input with some changes; None takes a key away."""
    sound = {"spec": SOUND, "repo": str(place), "task": "t", "scenario": script(only=turn(OK)), **changes}
    return {key: value for key, value in sound.items() if value is not None}


async def refusal(rig: Rig, name: str, *inputs: str, type_: str = "Flow") -> tuple[str, str]:
    """Start a run that must be refused; return type and text of its one error."""
    words = [word for text in inputs for word in ("--input", text)]
    started = rig.temporal(
        "workflow", "start", "--type", type_, "--task-queue", rig.task_queue, "--workflow-id", name, *words
    )
    assert started.returncode == 0, started.stderr
    error = await failure(rig, name)
    described = await rig.client.get_workflow_handle(name).describe()
    assert described.status == WorkflowExecutionStatus.FAILED
    types = await event_types(rig, name)
    assert "WORKFLOW_TASK_FAILED" not in types, types
    assert "WORKFLOW_TASK_TIMED_OUT" not in types, types
    assert types[-1] == "WORKFLOW_EXECUTION_FAILED"
    assert left_on_disk(rig, name) == []
    return error.type or "", error.message


async def refused_input(rig: Rig, name: str, flow_input: Mapping[str, Any]) -> tuple[str, str]:
    return await refusal(rig, name, json.dumps(flow_input))


def unnamed_faults(path: Path, type_: str, text: str) -> list[str]:
    """Return what the refusal of a bad flow does not say, of what the flow's first lines expect."""
    expected = re.findall(r"^# expect: (\d+): (\w+)$", path.read_text(), re.MULTILINE)
    missing = [
        f"{path.name}:{line}: {code}"
        for line, code in expected
        if not re.search(rf"{path.name}:{line}:\d+ {code} ", text)
    ]
    return missing if type_ == "FlowRefused" and expected else [f"{path.name}: {type_}: {text}"]


async def test_an_unknown_workflow_type_is_answered_with_the_known_ones(desk: Rig) -> None:
    type_, text = await refusal(desk, "bad-type", "{}", type_="Flows")
    assert type_ == "UnknownWorkflowType"
    assert text.startswith("no workflow type 'Flows'; known: Flow. Start a flow with --type Flow")


@pytest.mark.parametrize(
    ("name", "inputs", "says"),
    [
        ("bad-none", [], 'there is none; start with --input \'{"flow"'),
        (
            "bad-two",
            ['{"flow":"fix"}', '{"flow":"fix"}'],
            "2 inputs were given; give one JSON object such as",
        ),
        ("bad-string", ['"fix"'], "it is str, not a JSON object; give one such as"),
        ("bad-number", ["7"], "it is int, not a JSON object"),
        ("bad-list", ['["fix"]'], "it is list, not a JSON object"),
        ("bad-null", ["null"], "it is NoneType, not a JSON object"),
        ("bad-object", ["{}"], "task: Field required; repo: Field required"),
    ],
)
async def test_an_input_that_is_not_one_object_is_refused_with_an_example(
    desk: Rig, name: str, inputs: list[str], says: str
) -> None:
    type_, text = await refusal(desk, name, *inputs)
    assert type_ == "BadFlowInput"
    assert text.startswith(f"bad flow input: {says}")


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("bad-key", {"tsak": "t"}, "tsak: no such field; known: flow, spec, task, repo, base, params"),
        ("bad-task-type", {"task": 7}, "task: Input should be a valid string"),
        ("bad-task-empty", {"task": ""}, "task: String should have at least 1 character"),
        ("bad-no-task", {"task": None}, "task: Field required"),
        ("bad-no-repo", {"repo": None}, "repo: Field required"),
        ("bad-no-flow", {"spec": None}, "give exactly one of 'flow' (a name the worker knows) and 'spec'"),
        ("bad-both", {"flow": "fix"}, "give exactly one of 'flow' (a name the worker knows) and 'spec'"),
        ("bad-budget", {"budget": {"tokens": 0}}, "budget.tokens: Input should be greater than 0"),
        ("bad-budget-key", {"budget": {"token": 5}}, "budget.token: no such field; known: tokens, usd"),
        ("bad-cycles", {"budget": {"cycles": 5}}, "budget.cycles: it would bound nothing"),
        ("bad-approval", {"approval": "boss"}, "approval: Input should be 'human', 'developer' or 'auto'"),
        ("bad-publish", {"publish": "always"}, "publish: Input should be 'none', 'branch' or 'pull_request'"),
        ("bad-dirty-type", {"allow_dirty": "perhaps"}, "allow_dirty: Input should be a valid boolean"),
        ("bad-scenario-type", {"scenario": 5}, "scenario"),
    ],
)
async def test_a_bad_field_is_named_with_what_would_be_right(
    desk: Rig, repos: dict[str, Path], name: str, changes: dict[str, Any], says: str
) -> None:
    type_, text = await refused_input(desk, name, given(repos["good"], **changes))
    assert type_ == "BadFlowInput"
    assert says in text


@pytest.mark.parametrize(
    ("name", "changes", "type_", "says"),
    [
        (
            "bad-flow",
            {"spec": None, "flow": "fixx"},
            "UnknownFlow",
            ["no flow is named 'fixx'", "direct, fix"],
        ),
        (
            "bad-flow-path",
            {"spec": None, "flow": "../flows/fix"},
            "UnknownFlow",
            ["'../flows/fix'", "direct, fix"],
        ),
        (
            "bad-param",
            {"params": {"tset": "x"}},
            "BadFlowInput",
            ["flow 'small' has no parameter 'tset'", "this flow has none"],
        ),
        (
            "bad-param-known",
            {"spec": None, "flow": "fix", "params": {"tset": ["true"]}},
            "BadFlowInput",
            ["flow 'fix' has no parameter 'tset'", "test"],
        ),
        (
            "bad-param-type",
            {"spec": None, "flow": "fix", "params": {"test": 5}},
            "BadFlowInput",
            ["parameter 'test' is no argv: 5", "give"],
        ),
        (
            "bad-param-required",
            {"spec": flow(step("only", objective="Do ${params.what}."), params={"what": {"required": True}})},
            "BadFlowInput",
            ["parameter 'what' is required", "give `params: {what: …}`"],
        ),
        (
            "bad-stub",
            {"scenario": None},
            "BadFlowInput",
            [
                "'stub' plays a scenario and none is given",
                "steps: only",
                "offered: stub (available)",
                "scenario",
            ],
        ),
        (
            "bad-transport",
            {"transport": "claude-sdk"},
            "BadFlowInput",
            [
                "'claude-sdk' is not offered by this worker",
                "offered: stub (available)",
                "STEPWISE_TRANSPORTS",
            ],
        ),
        (
            "bad-transport-name",
            {"transport": ["stub", "clod"]},
            "BadFlowInput",
            ["'clod' is not offered by this worker", "offered: stub (available)"],
        ),
        (
            "bad-scenario",
            {"scenario": "nope"},
            "BadFlowInput",
            ["no scenario is named 'nope'", "known: build, "],
        ),
        (
            "bad-scenario-step",
            {"scenario": script(other=turn())},
            "BadFlowInput",
            ["script.yaml:", "other", "only"],
        ),
        (
            "bad-scenario-action",
            {"scenario": script(only=turn({"do": "dance"}))},
            "BadFlowInput",
            ["script.yaml:", "dance"],
        ),
        (
            "bad-scenario-text",
            {"scenario": {"name": "s.yaml", "text": "steps: ["}},
            "BadFlowInput",
            ["s.yaml:"],
        ),
        ("bad-publish-kind", {"publish": "branch"}, "BadFlowInput", ["publish", "leave it out"]),
        (
            "bad-developer",
            {"approval": "developer", "spec": flow(step("only", approval="before"))},
            "BadFlowInput",
            ["approval", "needs a model transport", "use human or auto"],
        ),
        (
            "bad-trusted",
            {"trusted": True},
            "BadFlowInput",
            ["trusted", "not among the repositories this worker trusts", "STEPWISE_TRUSTED_REPOS"],
        ),
    ],
)
async def test_what_the_worker_cannot_do_is_refused_with_the_mend(
    desk: Rig, repos: dict[str, Path], name: str, changes: dict[str, Any], type_: str, says: list[str]
) -> None:
    found, text = await refused_input(desk, name, given(repos["good"], **changes))
    assert found == type_
    assert [word for word in says if word not in text] == []


@pytest.mark.parametrize(
    ("name", "repo", "changes", "says"),
    [
        (
            "bad-repo-missing",
            "missing",
            {},
            ["is not there on host", "put the repository there, or give a URL"],
        ),
        ("bad-repo-plain", "plain", {}, ["is not a git repository", "git init"]),
        ("bad-repo-file", "file", {}, ["is not a git repository"]),
        ("bad-repo-sub", "sub", {}, ["is a folder inside the repository", "give "]),
        ("bad-repo-empty", "empty", {}, ["has no commit at HEAD", "make a first commit"]),
        ("bad-repo-unborn", "unborn", {}, ["has no commit at HEAD", "name a base"]),
        (
            "bad-repo-dirty",
            "dirty",
            {},
            ["uncommitted changes", "stay out of the run", "README.md", "new.txt", "allow_dirty"],
        ),
        ("bad-ref", "good", {"base": "nope"}, ["no branch, tag or commit 'nope'", "check the base"]),
        ("bad-ref-option", "good", {"base": "--upload-pack=x"}, ["--upload-pack=x"]),
        ("bad-repo-relative", "good", {"repo": "some/where"}, ["neither an absolute path nor a URL"]),
        ("bad-repo-scheme", "good", {"repo": "file:///tmp/x"}, ["'file' is not a protocol runs may use"]),
        ("bad-repo-secret", "good", {"repo": "https://u:pw@h/x"}, ["user-info", "git_credentials"]),
    ],
)
async def test_a_repository_that_cannot_be_used_is_refused_before_anything_is_kept(
    desk: Rig, repos: dict[str, Path], name: str, repo: str, changes: dict[str, Any], says: list[str]
) -> None:
    type_, text = await refused_input(desk, name, given(repos[repo], **changes))
    assert type_ == "RepositoryRefused"
    assert [word for word in says if word not in text] == []
    assert "pw@" not in text


async def test_an_unborn_head_with_a_base_that_exists_is_no_fault(desk: Rig, repos: dict[str, Path]) -> None:
    desk.start("good-base", given(repos["unborn"], base="main"))
    assert (await desk.result("good-base")).outcome == "verified"


async def test_a_dirty_repository_is_taken_when_that_is_allowed_and_its_changes_stay_out(
    desk: Rig, repos: dict[str, Path]
) -> None:
    before = git(repos["dirty"], "status", "--porcelain")
    desk.start("good-dirty", given(repos["dirty"], allow_dirty=True))
    result = await desk.result("good-dirty")
    assert result.outcome == "verified"
    assert result.git is not None
    branch = result.git.branch
    assert git(result.git.workspace, "ls-tree", "--name-only", branch).split() == ["README.md", "ok"]
    assert git(result.git.workspace, "show", f"{branch}:README.md") == "A repository."
    assert git(repos["dirty"], "status", "--porcelain") == before


async def test_every_fault_the_linter_knows_is_refused_by_file_and_line(
    desk: Rig, repos: dict[str, Path]
) -> None:
    chosen = [path for path in BAD_FLOWS if path.stem not in IN_FOLDERS]
    assert len(chosen) > 40
    faults = []
    for path in chosen:
        spec = {"name": path.name, "text": path.read_text()}
        name = f"lint-{path.stem.replace('_', '-')}"
        refused = await refused_input(desk, name, given(repos["good"], spec=spec, scenario="noop"))
        faults += unnamed_faults(path, *refused)
    assert faults == []


async def test_a_faulty_flow_of_the_worker_is_refused_like_one_that_is_sent(
    rig: Rig, repos: dict[str, Path]
) -> None:
    folders = [str(BAD_FLOWS[0].parent), str(BAD_FLOWS[0].parent.parent / "chain")]
    rig.worker(STEPWISE_FLOW_PATHS=",".join(folders))
    faults = []
    for path in (path for path in BAD_FLOWS if path.stem in IN_FOLDERS):
        name = f"named-{path.stem.replace('_', '-')}"
        refused = await refused_input(rig, name, given(repos["good"], spec=None, flow=path.stem))
        faults += unnamed_faults(path, *refused)
    assert faults == []


async def test_the_cli_shows_the_refusal_to_who_asks_for_the_result(desk: Rig) -> None:
    done = await asyncio.to_thread(
        desk.temporal,
        *("workflow", "execute", "--type", "Flow", "--task-queue", desk.task_queue),
        *("--workflow-id", "bad-shown", "--input", json.dumps({"flow": "nope", "repo": "/x", "task": "t"})),
    )
    assert done.returncode == 1
    assert "no flow is named 'nope' (known: build, direct, fix, plan-then-implement)" in done.stdout
    assert "Traceback" not in done.stdout


async def test_the_demo_repository_passes_with_the_same_fields_right(desk: Rig, demo_repo: Path) -> None:
    sent = {"flow": "direct", "repo": str(demo_repo), "task": "t", "scenario": "direct"}
    desk.start("good-all", {**sent, "params": {"test": UNITTEST}, "base": "main"})
    assert (await desk.result("good-all")).outcome == "verified"
