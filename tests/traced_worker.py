"""Runs worker.py with only those threads traced that run workflow code: coverage asks for no more, and tracing is slow."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # Threads that begin later are traced all the same.
    sys.settrace(None)
    root = Path(__file__).resolve().parent.parent
    sys.path.insert(0, str(root))
    runpy.run_path(str(root / "worker.py"), run_name="__main__")
