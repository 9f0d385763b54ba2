"""The tool of ``stepwise mcp`` that runs a command line in the workspace, under our command policy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cli.mcp_arguments import checked
from cli.mcp_protocol import RUN
from cli.mcp_tools import MAX_OUTPUT, Denied, Said, failure
from policy.commands import judge, judge_read_only
from schemas.cutting import cut
from system.processes import Finished, child_env, how_ended, run

_GRACE_S: Final = 0.5
_KEPT_BYTES: Final = 64 * 1024
_SHELL: Final = shutil.which("bash") or "/bin/sh"
_OWN: Final = ("HOME", "TMPDIR")


class Shell:
    """Runs commands in one workspace; ``timeout_s`` is the longest time of one.

    ``environment`` is their whole environment; without it they see the harmless variables, and where this process has
    its home. ``screened`` says that whoever passes calls on has asked people about those that policy leaves to them;
    otherwise those are denied.
    """

    def __init__(
        self,
        workspace: str,
        *,
        read_only: bool,
        environment: Mapping[str, str] | None,
        timeout_s: float,
        screened: bool,
    ) -> None:
        if environment is None:
            environment = child_env(extra={name: os.environ[name] for name in _OWN if name in os.environ})
        self._workspace = Path(workspace).resolve()
        self._environment = environment
        self._timeout_s = timeout_s
        self._screened = screened
        self._judge = judge_read_only if read_only else judge

    async def call(self, arguments: Mapping[str, Any]) -> Said:
        """Make a call; what goes wrong is said. Raises nothing but CancelledError."""
        try:
            return await self._run(**checked(RUN, arguments))
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever called has to know
            return failure(error)

    async def _run(self, *, command: str, timeout_s: float | None) -> Said:
        verdict = self._judge(command, workspace=str(self._workspace))
        if verdict.decision == "deny" or (verdict.decision == "ask" and not self._screened):
            raise Denied(verdict.code, verdict.reason)
        timeout_s = min(timeout_s or self._timeout_s, self._timeout_s)
        finished = await run(
            [_SHELL, "-c", command],
            cwd=self._workspace,
            env=self._environment,
            timeout_s=timeout_s,
            grace_s=_GRACE_S,
            max_output=_KEPT_BYTES,
        )
        return Said(cut(_told(finished, timeout_s), MAX_OUTPUT), failed=not finished.ok)


def _told(finished: Finished, timeout_s: float) -> str:
    parts = [part.decode("utf-8", "replace") for part in (finished.stdout, finished.stderr) if part]
    if finished.timed_out:
        parts.insert(0, f"Ended after {timeout_s:g} seconds.\n")
    elif not finished.ok:
        how = how_ended(finished.exit_code, finished.signal)
        parts.insert(0, f"{how[0].upper()}{how[1:]}.\n")
    return "".join(parts) or "(no output)"
