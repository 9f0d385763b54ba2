"""Where measurements are written down: docs/performance.md, each table between its marks, with the machine."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Final

import psutil

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "performance.md"


def machine() -> str:
    """Return the machine in one line."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = round(psutil.virtual_memory().total / 2**30)
    return f"{os.cpu_count()} cores ({model}), {memory} GiB, {platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}"


def publish(text: str, mark: str, *, write: bool) -> None:
    """Print a text; with ``write``, also put it into the page, in the place of what stands between ``mark``'s tags.

    Raises ValueError if the page has no such place.
    """
    sys.stdout.write(text + "\n")
    if not write:
        return
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(f"<!-- {mark} -->")
    _, end, after = rest.partition(f"<!-- /{mark} -->")
    if not begin or not end:
        message = f"{PAGE} has no place for {mark}"
        raise ValueError(message)
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
