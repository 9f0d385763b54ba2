"""What only a start shows: whether an agent's program can do here what sessions need. For ``stepwise doctor``."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

from transports import codex_program, gemini_cli
from transports.port import Availability
from transports.programs import Program, find_program

NODE: Final = 20
"""The oldest Node that Gemini CLI runs with."""
_LIMIT_S: Final = 20.0
_AGAIN: Final = "look at the machine's load and its limit of processes, and try again"


def tried(name: str) -> Availability:
    """Start what is installed for a transport, without a model or a session, and say whether it works. Blocks."""
    trial = {"codex": _codex, "gemini-cli": _gemini}.get(name)
    try:
        return Availability(ok=True) if trial is None else trial()
    except (OSError, subprocess.TimeoutExpired) as error:
        # That says nothing of what was to be tried.
        return Availability(ok=False, reason=f"it could not be tried: {error}", install_hint=_AGAIN)


def _codex() -> Availability:
    program = codex_program.find_program()
    if program is None:
        return codex_program.availability(program)
    with tempfile.TemporaryDirectory() as folder:
        own = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "CODEX_HOME": folder}
        code, _, stderr = _run(codex_program.sandbox_trial([str(program)]), own, folder)
    if code == 0:
        return Availability(ok=True)
    fault = codex_program.SANDBOX_FAULT.format(codex_program.last_line(stderr))
    return Availability(ok=False, reason=fault)


def _gemini() -> Availability:
    program = find_program(gemini_cli.PROGRAM)
    if not isinstance(program, Program) or program.node is None:
        return Availability(ok=True)
    _, said, stderr = _run([program.node, "--version"], {"PATH": os.environ.get("PATH", os.defpath)}, "/")
    found = re.match(rb"v(\d+)\.", said)
    if found is not None and int(found[1]) >= NODE:
        return Availability(ok=True)
    version = said.decode(errors="replace").strip() or codex_program.last_line(stderr)
    reason = f"Gemini CLI needs Node {NODE} or later, and {program.node} is {version}"
    return Availability(
        ok=False, reason=reason, install_hint=f"install Node {NODE} (in a checkout: make agents)"
    )


def _run(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple[int, bytes, bytes]:
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, timeout=_LIMIT_S, check=False)
    return done.returncode, done.stdout, done.stderr
