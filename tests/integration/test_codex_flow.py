"""A shipped flow on a real repository with Codex, the real program: engine, session, policy and evidence together."""

from __future__ import annotations

from pathlib import Path

from codex_kit import DRAFT, KEY, MODEL
from conftest import UNITTEST, Rig
from model_servers.openai import OpenAIServer
from model_servers.script import Call, HandIn, Reply, Run, Seen, Tokens, turn

MEND = """*** Begin Patch
*** Update File: calc/stats.py
@@
     total = 0.0
-    for value in values[1:]:
+    if not values:
+        raise ValueError("no values")
+    for value in values:
         total += value
*** End Patch"""


def mending(seen: Seen) -> Reply:
    """Be a model that tries what is not allowed, mends the bug, runs the tests and says so."""
    if seen.schema is not None:
        return turn(HandIn({**DRAFT, "status": "VERIFIED", "summary": "mended"}), tokens=Tokens(50, 0, 5))
    if seen.calls or "You close" in seen.system or "integrator" in seen.system.lower():
        return turn("It is mended.", tokens=Tokens(50, 0, 5))
    tests = " ".join(UNITTEST)
    return turn(
        Run("git push --force"), Call("apply_patch", {"input": MEND}), Run(tests), tokens=Tokens(50, 0, 5)
    )


async def test_a_flow_is_verified_with_codex(rig: Rig, demo_repo: Path) -> None:
    with OpenAIServer(mending) as server:
        rig.worker(STEPWISE_TRANSPORTS="codex", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=f"{server.url}/v1")
        given = {
            "flow": "direct",
            "task": "Mend the mean.",
            "repo": str(demo_repo),
            "params": {"test": UNITTEST},
        }
        rig.start("codex", {**given, "transport": "codex", "model": MODEL})
        result = await rig.result("codex")
    assert result.outcome == "verified", (result, rig.log())
    rig.check_evidence(result)
    first = rig.receipts(result.run_id)[0]
    assert (first.transport, first.provider, first.session) == ("codex", "openai", "cold")
    assert first.tool_calls.count == 3
    assert first.tool_calls.blocked == 1
    assert first.token_counts.total >= 110
    assert KEY not in "".join(path.read_text(errors="replace") for path in rig.store.rglob("*.json*"))
