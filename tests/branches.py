"""Says how many branches of ``workflows/`` and ``policy/`` the last test run took; exit code 1 below the bound.

``coverage report`` mixes lines and branches into one figure, and lines are the easier half.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOMS: Final = "workflows/*,policy/*"
BOUND: Final = 95.0
"""Percent. What is missing is for the most part defensive; it never goes down."""


def main() -> int:
    """Print the share of branches per module that misses one, and the whole; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        argv = [sys.executable, "-m", "coverage", "json", "-q", f"--include={ROOMS}", "-o", str(report)]
        subprocess.run(argv, check=True)
        found = json.loads(report.read_text(encoding="utf-8"))
    for name, module in sorted(found["files"].items()):
        missing = module["missing_branches"]
        if missing:
            lines = ", ".join(f"{start}→{end if end > 0 else 'exit'}" for start, end in missing[:8])
            sys.stdout.write(f"{name}: {len(missing)} branches not taken: {lines}\n")
    totals = found["totals"]
    share = 100 * totals["covered_branches"] / max(1, totals["num_branches"])
    sys.stdout.write(f"branches of {ROOMS}: {share:.1f} % (at least {BOUND:g} %)\n")
    return 0 if share >= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
