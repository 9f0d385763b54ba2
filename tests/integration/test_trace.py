"""One trace per run, whoever started it and however many workers it took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import UNITTEST, Rig, eventually
from trace_kit import Collected, collecting


@pytest.fixture
def collector() -> Iterator[Collected]:
    """A small OTLP collector on a free port."""
    with collecting() as collected:
        yield collected


async def test_a_run_started_by_the_cli_is_one_nested_trace_across_a_killed_worker(
    rig: Rig, demo_repo: Path, collector: Collected, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    scenario = f"""
version: 1
steps:
  implement:
    turns:
      - work:
          - {{do: edit, path: a.txt, content: "secret words of the agent"}}
          - {{do: wait_for_file, path: {go}}}
          - {{do: run, argv: [echo, done]}}
          - {{do: tokens, prompt: 7, completion: 3}}
        finalize:
          actions:
            - {{do: run, argv: [echo, asked]}}
            - {{do: tokens, prompt: 5, completion: 1}}
"""
    first = rig.worker(**collector.environment)
    rig.start(
        "traced",
        {
            "flow": "direct",
            "repo": str(demo_repo),
            "task": "words nobody may export",
            "params": {"test": UNITTEST},
            "scenario": {"name": "s.yaml", "text": scenario},
        },
    )
    run_id = await rig.run_id("traced")
    eventually((rig.folder / "disk" / "runs" / run_id / "ws" / "a.txt").exists)
    first.kill()
    first.wait()
    go.touch()
    second = rig.worker(**collector.environment)
    result = await rig.result("traced")
    second.terminate()
    assert second.wait(30) == 0

    assert result.outcome == "unverified"
    assert len({span.trace_id for span in collector.spans}) == 1
    (run_span,) = collector.named("RunWorkflow")
    assert len(collector.named("step implement")) == 1
    turns = [collector.above(turn) for turn in collector.named("invoke_agent")]
    around = [names for names in turns if "step implement" in names]
    for phase in ("work", "finalize"):
        wanted = ["invoke_agent stub", f"RunActivity:{phase}", f"StartActivity:{phase}"]
        assert around.count([*wanted, "step implement", run_span.name]) == 1
        # Those of the attempt that was killed may have been sent before it died.
        for kind in ("execute_tool", "chat"):
            assert any(collector.above(one)[1:3] == wanted[:2] for one in collector.named(kind)), (
                kind,
                phase,
            )
    (asked,) = [one for one in collector.named("invoke_agent") if "RunActivity:finalize" in collector.above(one)
                and "step implement" in collector.above(one)]  # fmt: skip
    said = {each.key: each.value for each in asked.attributes}
    assert said["stepwise.phase"].string_value == "finalize"
    assert (said["gen_ai.usage.input_tokens"].int_value, said["gen_ai.usage.output_tokens"].int_value) == (
        5,
        1,
    )
    exported = "".join(str(span) for span in collector.spans)
    assert "words nobody may export" not in exported
    assert "secret words" not in exported
