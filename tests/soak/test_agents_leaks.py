"""However many steps an agent takes, the worker holds no more than after its first: ``STEPWISE_LEAK_RUNS`` of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from agents_kit import AGENTS, agents
from leak_steps import Held
from step_kit import mind

from transports import registry

RUNS: Final = int(os.environ.get("STEPWISE_LEAK_RUNS") or 5)
"""How many steps each agent takes."""
WARM: Final = 3
"""After so many steps caches are full."""
GROWTH_KB: Final = 4_096
KEPT: Final[Mapping[str, str]] = {
    "stub": r"(?!)",
    "claude-sdk": r"marks/N\.json|claude-sdk/projects/[^/]+/N\.jsonl",
    "claude-cli": r"marks/N\.json|claude-cli/projects/[^/]+/N\.jsonl",
    "codex": r"marks/N\.json|codex/sessions/N/N/N/rollout-[^/]+\.jsonl",
    "gemini-cli": r"marks/N\.json|gemini-cli/chats/session-[^/]+\.jsonl",
}
"""What is kept of each session, since it is resumed from there; all else in the state is there once."""
_STEP_S: Final = 60


def take_steps(name: str, runs: int, folder: Path) -> list[Held]:
    """Have a process take steps, and return what it held after each."""
    own = {"TMPDIR": folder / "tmp", "HOME": folder / "home"}
    for made in own.values():
        made.mkdir()
    with agents({name: mind} if name in AGENTS else {}) as env:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("leak_steps.py")), name, str(runs), str(folder)],
            env={**env, "PATH": os.environ["PATH"], **{key: str(path) for key, path in own.items()}},
            capture_output=True,
            text=True,
            timeout=runs * _STEP_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return [Held.model_validate_json(line) for line in done.stdout.splitlines()]


@pytest.mark.chaos
@pytest.mark.timeout(max(120, RUNS * _STEP_S))
@pytest.mark.parametrize("name", KEPT)
def test_steps_leave_nothing_behind(name: str, tmp_path: Path) -> None:
    available = registry.open(name).is_available()
    if not available.ok:
        pytest.skip(f"{available.reason}: {available.install_hint}")
    helds = take_steps(name, RUNS, tmp_path)
    assert len(helds) == RUNS
    first, last = helds[0], helds[-1]
    for held in helds:
        assert held.processes == []
        assert held.temporary == []
        assert held.tasks == 0
        assert held.threads == first.threads
        assert held.descriptors == first.descriptors
    kept = RUNS - 1
    if name == "gemini-cli":
        # It begins one more file for a session that goes on in another minute, which is removed when it is resumed.
        kept += 1 + int(sum(held.seconds for held in helds) // 60)
    for file, count in last.state.items():
        more = count - first.state.get(file, 0)
        assert more <= (kept if re.fullmatch(KEPT[name], file) else 0), (file, last.state)
    if RUNS > WARM:
        # Fewer steps say nothing of memory.
        assert last.rss_kb - helds[WARM - 1].rss_kb < GROWTH_KB, [held.rss_kb for held in helds]
    sys.stdout.write(_told(name, helds))


def _told(name: str, helds: list[Held]) -> str:
    """Return the numbers in one line, for who runs the long form."""
    seconds = sorted(held.seconds for held in helds)[len(helds) // 2]
    memory = f"{helds[min(WARM, len(helds)) - 1].rss_kb} to {helds[-1].rss_kb} kB"
    more = f"{len(helds[-1].descriptors)} descriptors, {len(helds[-1].threads)} threads"
    return f"{name}: {len(helds)} steps of {seconds:.2f} s, memory {memory}, {more}\n"
