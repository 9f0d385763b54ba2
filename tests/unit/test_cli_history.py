"""``stepwise runs``, ``show``, ``tail`` and ``verify``: which run is meant, how it stands, with no server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hand_kit import NO_SERVER, Hand, Said, by_hand, key, whole


@pytest.fixture
def hand(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Hand:
    return by_hand(own_place, monkeypatch)


# runs


def test_without_a_server_the_store_is_listed_and_that_is_said_in_one_line(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.ended("old-1", "old")
    hand.record("new-1", "new", 5)
    hand.record("asks-1", "asks", 6)
    hand.journal("asks-1", (360, "waiting", {"waiting_for": "approval", "reason": "?"}))
    hand.record("limited-1", "limited", 7)
    hand.journal("limited-1", (420, "waiting", {"waiting_for": "rate_limit", "reason": "?"}))

    said = Said(capsys, "runs")

    assert said.code == 0
    (line,) = said.err.splitlines()
    assert f"no Temporal server answers at {NO_SERVER}" in line
    assert [one.split()[:2] for one in said.lines[1:]] == [
        ["limited-1", "waiting:rate_limit"],
        ["asks-1", "waiting:approval"],
        ["new-1", "running"],
        ["old-1", "verified"],
    ]
    assert [row["run_id"] for row in Said(capsys, "runs", "--waiting", "--json").data] == ["asks-1"]
    for word, ids in {"waiting": ["limited-1", "asks-1"], "waiting:approval": ["asks-1"]}.items():
        assert [row["run_id"] for row in Said(capsys, "runs", "--outcome", word, "--json").data] == ids
    assert Said(capsys, "runs", "--outcome", "waiting:budget").code == 0
    assert Said(capsys, "runs", "--outcome", "running:approval").code == 2


def test_runs_are_chosen_by_outcome_flow_and_repository(
    hand: Hand, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.ended("a-1", "a", 1)
    hand.ended("b-1", "b", 2, outcome="failed", flow_key="build", repo="https://example.org/team/calc.git")
    hand.ended("c-1", "c", 3, repo="/src/other")
    monkeypatch.chdir("/")

    def listed(*options: str) -> list[str]:
        return [row["run_id"] for row in Said(capsys, "runs", "--json", *options).data]

    assert listed() == ["c-1", "b-1", "a-1"]
    assert listed("--outcome", "failed") == ["b-1"]
    assert listed("--flow", "fix") == ["c-1", "a-1"]
    assert listed("--repo", "calc") == ["b-1", "a-1"]
    assert listed("--repo", "team/calc") == ["b-1"]
    assert listed("--repo", "/src/other/") == ["c-1"]
    assert listed("--repo", "src/other") == ["c-1"]
    assert listed("--repo", "alc") == []
    assert listed("--limit", "1") == ["c-1"]
    assert listed("--limit", "0") == ["c-1", "b-1", "a-1"]
    assert "2 more: --limit 3 shows them" in Said(capsys, "runs", "--limit", "1").err
    assert "no run fits" in Said(capsys, "runs", "--flow", "none").err


def test_a_word_that_is_no_outcome_is_refused_with_those_there_are(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hand
    said = Said(capsys, "runs", "--outcome", "verfied")
    assert said.code == 2
    assert "say one of verified, nothing_to_do" in said.err


# Which run is meant.


def test_a_run_is_found_by_its_id_its_workflow_or_the_beginning_of_one(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    for minutes, run_id in enumerate(["mend-aaa1", "mend-bbb2"]):
        hand.ended(run_id, "Mend", minutes)
    hand.ended("other-ccc3", "other", 9)

    def found(word: str) -> str:
        run_id: str = Said(capsys, "show", word, "--json").data["run"]["run_id"]
        return run_id

    assert found("mend-aaa1") == "mend-aaa1"
    assert found("mend-a") == "mend-aaa1"
    assert found("Mend") == "mend-bbb2"
    assert found("Me") == "mend-bbb2"
    assert found("o") == "other-ccc3"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("mend-", "'mend-' is the beginning of 2 runs -> say more of one of them: mend-bbb2, mend-aaa1"),
        ("otter", "there is no run 'otter' -> did you mean other"),
        (
            "zzz",
            "there is no run 'zzz' -> `stepwise runs` lists them; the newest: other-ccc3, mend-bbb2, mend-aaa1",
        ),
        ("", "there is no run ''"),
    ],
)
def test_a_run_that_is_not_there_is_one_clear_error(
    hand: Hand, capsys: pytest.CaptureFixture[str], word: str, says: str
) -> None:
    for minutes, run_id in enumerate(["mend-aaa1", "mend-bbb2"]):
        hand.ended(run_id, "Mend", minutes)
    hand.ended("other-ccc3", "other", 9)
    for command in ("show", "tail", "verify"):
        said = Said(capsys, command, word)
        assert said.code == 2
        assert said.out == ""
        assert says in said.err.splitlines()[-1]


def test_verify_finds_a_run_as_show_does_and_one_that_lost_its_record_by_its_whole_id(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.ended("mend-aaa1", "Mend")
    hand.receipt(key("mend-aaa1"), 1)

    def verified(word: str) -> tuple[int, str]:
        said = Said(capsys, "verify", word, "--json")
        return said.code, said.data["receipts"][0]

    whole = (0, "runs/mend-aaa1/fix/build/1/1/receipt.json")
    assert verified("Mend") == whole
    assert verified("mend-a") == whole
    (hand.store / "runs/mend-aaa1/run.json").unlink()
    assert verified("mend-aaa1") == whole


def test_a_store_without_runs_and_a_store_that_is_not_there_are_told_apart(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the store has no runs" in Said(capsys, "show", "x").err
    shutil.rmtree(hand.store)
    for arguments in (["runs"], ["show", "x"], ["tail", "x"], ["prune", "--keep", "1"]):
        assert "there is no store at " in Said(capsys, *arguments).err
    assert not hand.store.exists()


# tail, where it needs no server


def test_tail_prints_what_there_is_and_ends_when_the_run_is_over(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    whole(hand)
    there = Said(capsys, "tail", "r", "--no-follow")
    assert "says: at 62" in there.out
    assert there.lines[-1].endswith("verified: all gates passed")
    followed = Said(capsys, "tail", "r-1")
    assert followed.lines == [*there.lines, "the run is over: verified"]
    assert f"no Temporal server answers at {NO_SERVER}" in followed.err
    as_json = Said(capsys, "tail", "r-1", "--json").lines
    assert json.loads(as_json[-1]) == {"kind": "over", "outcome": "verified"}
    assert json.loads(as_json[0])["kind"] == "run_created"


def test_tail_says_that_another_worker_has_the_agents_log(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.record("r-1", "r", host="far")
    hand.journal("r-1", (0, "run_created", {"flow": "fix"}))
    hand.data.mkdir(exist_ok=True)
    (hand.data / "worker_id").write_text("w2\n")
    assert "worker w1 on far holds the run" in Said(capsys, "tail", "r", "--no-follow").err
    (hand.data / "worker_id").write_text("w1\n")
    assert "holds the run" not in Said(capsys, "tail", "r", "--no-follow").err
