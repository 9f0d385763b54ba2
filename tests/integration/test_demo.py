"""``make demo`` as people run it: it ends verified, and what it proposes next works."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo_kit import ROOT, check_next, environment, one_demo, run
from flow_kit import git, make_repository

from cli.demo import wanted
from schemas.errors import BadInput


def test_the_demo_ends_verified_and_its_next_commands_work(tmp_path: Path) -> None:
    done = run([sys.executable, "-m", "cli.demo"], tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout
    for line in (
        "gate tests FAILED (exit 1)",
        "route loop -> implement: No exit of the loop holds after iteration 1 of 5.",
        "outcome          verified: every required gate passed on the final tree",
        "implement #2  advance -> review",
        "tests FAILED -> passed",
        "+    for value in values:",
    ):
        assert line in said
    check_next(said, tmp_path, ".stepwise/demo/1/worker")


def test_a_demo_that_waits_for_a_person_says_what_to_type_and_can_be_ended(tmp_path: Path) -> None:
    made = run([sys.executable, str(ROOT / "examples" / "demo_repo.py"), "calc"], tmp_path)
    assert made.returncode == 0
    asked = {"REPO": "calc", "TASK": "t", "GATE": "false", "SCENARIO": "noop"}
    argv = [sys.executable, "-m", "cli.demo"]
    with subprocess.Popen(
        argv,
        cwd=tmp_path,
        env=environment(tmp_path) | asked,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            assert demo.stdout is not None
            said = [next(line for line in demo.stdout if "waits for human" in line)]
            said += [next(demo.stdout) for _ in range(2)]
            demo.send_signal(signal.SIGINT)
            _, complaint = demo.communicate(timeout=60)
        finally:
            demo.kill()
    assert said[1].startswith("    # ")
    assert re.match(
        r"    temporal workflow update execute --workflow-id demo-1 --name .* --address 127\.0\.0\.1:\d+$",
        said[2],
    )
    assert (demo.returncode, complaint) == (
        130,
        "demo: ended before its run was; server and worker are stopped\n",
    )


OWN_SCENARIO = """\
version: 1
steps:
  implement:
    turns:
      - work:
          - {do: edit, path: mended.txt, content: "mended\\n"}
          - {do: run, argv: [test, -f, mended.txt]}
        finalize:
          value: {status: VERIFIED, summary: It is mended.}
"""


def test_a_repository_of_ones_own_gets_each_result_by_the_printed_command_and_nothing_else(
    tmp_path: Path,
) -> None:
    repo = make_repository(tmp_path / "somebody's own", {".gitignore": "/notes\n"})
    (repo / "notes").write_text("nobody else's\n")
    git(repo, "checkout", "--quiet", "-b", "mine")
    (tmp_path / "own.yaml").write_text(OWN_SCENARIO)
    asked = {"REPO": str(repo), "TASK": "mend it", "GATE": "test -f mended.txt", "SCENARIO": "own.yaml"}

    def seen() -> list[str]:
        looked = (["status", "--porcelain", "--ignored"], ["rev-parse", "HEAD"], ["symbolic-ref", "HEAD"])
        return [git(repo, *argv) for argv in looked]

    def branches() -> set[str]:
        return set(git(repo, "for-each-ref", "--format=%(refname:short)").splitlines())

    for dirty in (False, True):
        if dirty:
            (repo / "half").write_text("not committed\n")
            refused = run([sys.executable, "-m", "cli.demo"], tmp_path, asked)
            assert refused.returncode != 0
            assert "ALLOW_DIRTY=1" in refused.stderr
            asked["ALLOW_DIRTY"] = "1"
        before, known = seen(), branches()
        said = one_demo(tmp_path, asked)
        assert "tests FAILED -> passed" in said
        assert (seen(), branches()) == (before, known)
        fetch = said[said.index("\nfetch the result into ") :].splitlines()[2].strip()
        fetched = run(["sh", "-c", fetch], tmp_path)
        assert fetched.returncode == 0, (fetch, fetched.stderr)
        assert seen() == before
        (new,) = branches() - known
        assert git(repo, "diff", "--name-status", "HEAD", new) == "A\tmended.txt"
        known |= {new}


def test_a_repository_of_ones_own_needs_a_task_and_nothing_of_the_demos(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="REPO is given without TASK"):
        wanted({"REPO": str(tmp_path)}, tmp_path)
    with pytest.raises(BadInput, match=r"TRANSPORT=claude-cli, claude-sdk, codex, gemini-cli.*SCENARIO=FILE"):
        wanted({"REPO": str(tmp_path), "TASK": "t", "TRANSPORT": "stub"}, tmp_path)
    own = wanted({"REPO": str(tmp_path), "TASK": "t", "TRANSPORT": "codex"}, tmp_path / "demo")
    assert (own.repo, own.task, own.gate, own.transport, own.scenario) == (
        str(tmp_path),
        "t",
        "",
        "codex",
        "",
    )
    assert wanted({"REPO": "https://x/y", "TASK": "t", "SCENARIO": "noop"}, tmp_path).repo == "https://x/y"
    assert wanted({"TASK": "other"}, tmp_path).task == "other"
