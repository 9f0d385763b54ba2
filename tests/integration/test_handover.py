"""Work that one agent was interrupted in is gone on with by another one: the work is kept, and the flow ends verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from agents_kit import agents
from conftest import UNITTEST, Rig
from model_servers.minds import BUGGY, RIGHT, WRONG, Player
from model_servers.script import Mind, Refuse, Reply, Seen, Write, turn
from run_kit import resume, signal, waiting

NAMED = "claude-opus-5-5"
PAIRS = [
    ("claude-sdk", "codex"),
    ("codex", "claude-sdk"),
    ("claude-sdk", "gemini-cli"),
    ("gemini-cli", "claude-cli"),
]


def begins(seen: Seen) -> Sequence[Reply]:
    """Make half of the change, then say nothing more."""
    if "Find the cause" not in seen.asked:
        return []
    return [turn(Write(BUGGY, WRONG)), turn("And now…", "And on.", hang_after=1)]


def knows(prefix: str, mind: Mind) -> Mind:
    """Refuse every model whose name begins otherwise, as a provider does that does not have it."""
    return lambda seen: mind(seen) if seen.model.startswith(prefix) else Refuse(404)


async def test_a_named_model_is_not_asked_of_the_agent_of_another_provider_that_goes_on(
    rig: Rig, demo_repo: Path
) -> None:
    asked: dict[str, set[str]] = {"claude-sdk": set(), "codex": set()}

    def stands(seen: Seen) -> Sequence[Reply]:
        asked["claude-sdk"].add(seen.model)
        return begins(seen)

    def goes_on(seen: Seen) -> Sequence[Reply]:
        asked["codex"].add(seen.model)
        return [turn(Write(BUGGY, RIGHT))] if "Find the cause" in seen.asked else []

    minds = {
        "claude-sdk": knows("claude-", Player(stands)),
        "codex": knows("gpt-", Player(goes_on)),
    }
    with agents(minds) as env:
        rig.worker(**env)
        rig.start(
            "models",
            {
                "flow": "fix",
                "repo": str(demo_repo),
                "task": "The mean is wrong.",
                "params": {"test": UNITTEST},
                "transport": ["claude-sdk", "codex"],
                "model": NAMED,
            },
        )
        await rig.until("models", lambda now: now.get("phase") == "work")
        run_id = (await rig.status("models"))["run_id"]
        workspace = rig.folder / "disk" / "runs" / run_id / "ws"
        await rig.until("models", lambda _: (workspace / BUGGY).read_text() == WRONG)
        await signal(rig, "models", "interrupt")
        await waiting(rig, "models", "human")
        await resume(rig, "models", transport="codex")
        result = await rig.result("models")
    assert result.outcome == "verified", result.summary
    receipts = rig.receipts(run_id)
    assert [(one.transport, one.model) for one in receipts] == [
        ("claude-sdk", NAMED),
        ("codex", "gpt-5.5"),
        ("claude-sdk", NAMED),
        ("claude-sdk", NAMED),
    ]
    assert NAMED in asked["claude-sdk"]
    assert asked["codex"] == {"gpt-5.5"}


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=["-to-".join(pair) for pair in PAIRS])
async def test_an_agent_goes_on_where_another_one_was_interrupted(
    rig: Rig, demo_repo: Path, first: str, second: str
) -> None:
    name, told = f"{first}-to-{second}", list[str]()

    def goes_on(seen: Seen) -> Sequence[Reply]:
        if "Find the cause" not in seen.asked:
            return []
        told.append(seen.asked)
        return [turn(Write(BUGGY, RIGHT))]

    with agents({first: Player(begins), second: Player(goes_on)}) as env:
        rig.worker(**env)
        rig.start(
            name,
            {
                "flow": "fix",
                "repo": str(demo_repo),
                "task": "The mean is wrong.",
                "params": {"test": UNITTEST},
                "transport": [first, second],
            },
        )
        await rig.until(name, lambda now: now.get("phase") == "work")
        run_id = (await rig.status(name))["run_id"]
        workspace = rig.folder / "disk" / "runs" / run_id / "ws"
        await rig.until(name, lambda _: (workspace / BUGGY).read_text() == WRONG)
        await signal(rig, name, "interrupt", {"by": "ann"})
        await waiting(rig, name, "human")
        await resume(rig, name, transport=second, note="No values have no mean: ValueError.")
        result = await rig.result(name)
    assert result.outcome == "verified", result.summary
    (asked,) = told
    assert "Where you were stopped" in asked
    assert BUGGY in asked
    assert "No values have no mean" in asked
    receipts = rig.receipts(run_id)
    assert [one.transport for one in receipts] == [first, second, first, first]
    assert receipts[0].stop is not None
    assert receipts[0].stop.requested_by == "ann"
    assert receipts[0].git is not None
    assert receipts[1].git is not None
    assert receipts[1].git.commit_after != receipts[0].git.commit_after


async def test_an_agent_named_when_the_work_was_done_is_the_next_to_work(
    rig: Rig, demo_repo: Path, tmp_path: Path
) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    worked = f"grep -q 'sum(values)' {BUGGY} && touch {begun} && ! test -e {go}"
    test = ["sh", "-c", f"{worked} && exec sleep 60; python3 -m unittest -q"]

    def errs(seen: Seen) -> Sequence[Reply]:
        return [turn(Write(BUGGY, WRONG))] if "Find the cause" in seen.asked else []

    def mends(seen: Seen) -> Sequence[Reply]:
        return [turn(Write(BUGGY, RIGHT))] if "Find the cause" in seen.asked else []

    with agents({"claude-cli": Player(errs), "codex": Player(mends)}) as env:
        rig.worker(**env)
        rig.start(
            "named",
            {
                "flow": "fix",
                "repo": str(demo_repo),
                "task": "The mean is wrong.",
                "params": {"test": test},
                "transport": ["claude-cli", "codex"],
            },
        )
        await rig.until("named", lambda _: begun.exists())
        await signal(rig, "named", "interrupt")
        await waiting(rig, "named", "human")
        go.touch()
        await resume(rig, "named", transport="codex")
        result = await rig.result("named")
    assert result.outcome == "verified", result.summary
    work = [one for one in rig.receipts(result.run_id) if one.step_id == "implement"]
    assert [(one.visit, one.transport) for one in work][-1] == (2, "codex")
    assert {one.transport for one in work if one.visit == 1} == {"claude-cli"}
