"""Says how many branches of ``workflows/`` and ``policy/`` the last test run took; exit code 1 below the bound.

``coverage report`` mixes lines and branches into one figure, and lines are the easier half.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOMS: Final = ("workflows", "policy")
BOUND: Final = 95.0
"""Percent, of both rooms together. What is missing is for the most part defensive; it never goes down."""


def main() -> int:
    """Print the share of branches per module that misses one, and the whole; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        argv = [
            sys.executable,
            "-m",
            "coverage",
            "json",
            "-q",
            f"--include={','.join(f'{room}/*' for room in ROOMS)}",
        ]
        argv += ["-o", str(report)]
        subprocess.run(argv, check=True)
        found = json.loads(report.read_text(encoding="utf-8"))
    for name, module in sorted(found["files"].items()):
        missing = module["missing_branches"]
        if missing:
            lines = ", ".join(f"{start}→{end if end > 0 else 'exit'}" for start, end in missing[:8])
            sys.stdout.write(f"{name}: {len(missing)} branches not taken: {lines}\n")
    for room in ROOMS:
        sys.stdout.write(f"branches of {room}/: {_share(found['files'], room):.1f} %\n")
    share = _share(found["files"], *ROOMS)
    sys.stdout.write(f"branches of both: {share:.1f} % (at least {BOUND:g} %)\n")
    return 0 if share >= BOUND else 1


def _share(files: dict[str, Any], *rooms: str) -> float:
    """Return the percentage of these rooms' branches that were taken; 0 where they have none."""
    sums = [module["summary"] for name, module in files.items() if name.partition("/")[0] in rooms]
    taken, all_of_them = (sum(one[key] for one in sums) for key in ("covered_branches", "num_branches"))
    return 100 * taken / all_of_them if all_of_them else 0.0


if __name__ == "__main__":
    sys.exit(main())
