"""Creates a small real git repository with a real bug: ``python examples/demo_repo.py PATH``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_BEFORE = {
    ".gitignore": "__pycache__/\n*.pyc\n",
    "README.md": """\
# calc

Small statistics without dependencies.

    python3 -m unittest -q
""",
    "calc/__init__.py": '"""Small statistics."""\n',
    "calc/stats.py": '''\
"""Averages."""

from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; ValueError if there are no values."""
    total = 0.0
    for value in values[1:]:
        total += value
    return total / len(values)
''',
}
_AFTER = {
    "tests/__init__.py": "",
    "tests/test_stats.py": '''\
"""What averages promise."""

import unittest

from calc.stats import mean


class Mean(unittest.TestCase):
    def test_every_value_counts(self) -> None:
        self.assertEqual(mean([1, 2, 6]), 3)

    def test_one_value_is_its_own_mean(self) -> None:
        self.assertEqual(mean([4]), 4)

    def test_no_values_have_no_mean(self) -> None:
        with self.assertRaises(ValueError):
            mean([])
''',
}
_COMMITS = [
    ("Add the mean", "2026-01-05T09:00:00Z", _BEFORE),
    ("Say in tests what the mean promises", "2026-01-05T10:00:00Z", _AFTER),
]


def create(path: Path) -> None:
    """Create the repository at ``path``; FileExistsError if something is there already."""
    path.mkdir(parents=True)
    _git(path, "init", "--quiet", "--initial-branch=main")
    for subject, date, files in _COMMITS:
        for name, text in files.items():
            file = path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        _git(path, "add", "--all")
        _git(path, "commit", "--quiet", "--message", subject, date=date)


def _git(path: Path, *arguments: str, date: str = "") -> None:
    # a date that is not given stays git's own; an empty one would be refused
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date} if date else {}
    # the same commits everywhere: nobody's name, signing key or hook gets in
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(path),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Demo",
        "GIT_AUTHOR_EMAIL": "demo@example.invalid",
        "GIT_COMMITTER_NAME": "Demo",
        "GIT_COMMITTER_EMAIL": "demo@example.invalid",
        **dates,
    }
    subprocess.run(["git", *arguments], cwd=path, env=environment, check=True)


def main(arguments: list[str]) -> int:
    """Create the repository; return the exit code (1: something is in the way, 2: wrong arguments)."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python examples/demo_repo.py PATH\n")
        return 2
    path = Path(arguments[0]).absolute()
    try:
        create(path)
    except FileExistsError:
        sys.stderr.write(f"{path} exists already; name a path that does not\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
