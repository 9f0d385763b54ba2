"""The import contracts of pyproject.toml: each must break on an import that it is there to refuse."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINTER: dict[str, Any] = CONFIG["tool"]["importlinter"]
ROOMS: list[str] = LINTER["root_packages"]
VENDORS: dict[str, Any] = next(each for each in LINTER["contracts"] if each["id"] == "vendors")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [str(program), "--no-logo", "--cache-dir", str(folder / ".cache")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_imports_as_they_are_break_no_contract(copied: Path) -> None:
    done = lint_imports(copied)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Contracts: {len(LINTER['contracts'])} kept, 0 broken." in done.stdout


@pytest.mark.parametrize(
    ("file", "imported"),
    [
        ("policy/plain.py", "system.paths"),
        ("store/keys.py", "transports.port"),
        ("store/keys.py", "flows.plan"),
        ("store/keys.py", "worker"),
        ("store/keys.py", "boto3"),
        ("transports/stub.py", "claude_agent_sdk"),
        ("transports/claude_cli.py", "claude_agent_sdk"),
        ("flows/plan.py", "workflows.words"),
        ("flows/plan.py", "policy.plain"),
        ("workflows/words.py", "policy.shell"),
        ("workflows/routing/graph.py", "workflows.words"),
        ("workflows/routing/graph.py", "policy.budgets"),
        ("activities/trace.py", "workflows.words"),
    ],
)
def test_an_import_against_the_rules_breaks_a_contract(copied: Path, file: str, imported: str) -> None:
    path = copied / file
    before = path.read_text()
    try:
        path.write_text(f"{before}\nimport {imported}\n")
        done = lint_imports(copied)
    finally:
        path.write_text(before)

    assert done.returncode == 1, done.stdout + done.stderr
    importer = ".".join(path.relative_to(copied).with_suffix("").parts)
    assert f"- {importer} -> {imported} (l." in " ".join(done.stdout.split())


def test_the_rooms_are_those_that_are_installed() -> None:
    installed = CONFIG["tool"]["setuptools"]["packages"]["find"]["include"]

    assert sorted(ROOMS) == sorted(pattern.removesuffix("*") for pattern in installed)
    assert sorted(ROOMS) == sorted(each.parent.name for each in ROOT.glob("[a-z]*/__init__.py"))


def test_every_package_of_an_extra_is_a_vendors() -> None:
    extras = CONFIG["project"]["optional-dependencies"]
    wanted = {
        requirement.split(">=")[0]
        for extra, requirements in extras.items()
        if extra not in {"dev", "all"}
        for requirement in requirements
    }
    modules = {
        module
        for module, owners in packages_distributions().items()
        if wanted & set(owners) and module[0] != "_"
    }

    assert modules == set(VENDORS["forbidden_modules"])


def test_the_worker_imports_no_vendors_package() -> None:
    # It is a module outside of all packages: import-linter does not look into it.
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse((ROOT / "worker.py").read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert "workflows" in imported
    assert not imported & set(VENDORS["forbidden_modules"])
