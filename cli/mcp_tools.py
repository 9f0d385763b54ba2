"""The tools that ``stepwise mcp`` offers: files and commands of one workspace, under our path and command policy."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from policy.commands import judge, judge_read_only
from schemas.common import Closed
from schemas.cutting import cut
from schemas.errors import StepwiseError
from system.files import Root
from system.paths import PathDenied
from system.processes import Finished, run

MAX_OUTPUT: Final = 30_000
"""How many characters of a tool's output the model gets."""
MAX_TIMEOUT_S: Final = 3_600.0

_GRACE_S: Final = 0.5
_KEPT_BYTES: Final = 64 * 1024
_SHELL: Final = shutil.which("bash") or "/bin/sh"

Place = Annotated[str, Field(description="Relative to the workspace, or absolute within it.")]


class ReadFile(Closed):
    """Read a text file of the workspace, or some of its lines."""

    path: Place
    offset: Annotated[int, Field(ge=1, description="The first line, counted from 1.")] = 1
    limit: Annotated[int | None, Field(ge=1, description="How many lines; all by default.")] = None


class ListFiles(Closed):
    """List a folder of the workspace; folders end with a slash."""

    path: Place = "."
    recursive: bool = False


class WriteFile(Closed):
    """Create a file of the workspace or replace it whole; folders are made."""

    path: Place
    content: str


class EditFile(Closed):
    """Replace a text in a file of the workspace; it has to be there exactly once, unless all of them are meant."""

    path: Place
    old: Annotated[str, Field(min_length=1)]
    new: str
    all: bool = False


class RunCommand(Closed):
    """Run a command line with a shell in the workspace, and wait for its end."""

    command: str
    timeout_s: Annotated[float | None, Field(gt=0, le=MAX_TIMEOUT_S)] = None


@dataclass(frozen=True)
class Said:
    """What a tool answers: words for the model, and whether it failed."""

    text: str
    failed: bool = False


@dataclass(frozen=True)
class Tool:
    """One tool: the model of its arguments, and what it does. ``cli.mcp_declared`` tells clients of it."""

    arguments: type[Closed]
    does: Callable[[Any], Awaitable[Said]]


class Denied(StepwiseError):
    """Raised for a call that policy does not allow; nothing was done."""


class Workshop:
    """The tools of one workspace. ``environment`` is the whole environment of commands, ``timeout_s`` their bound.

    ``screened`` says that whoever passes calls on has asked people about those that policy leaves to them; otherwise
    those are denied.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        read_only: bool,
        environment: Mapping[str, str],
        timeout_s: float,
        screened: bool = False,
    ) -> None:
        self._root = Root(workspace)
        self._workspace = workspace.resolve()
        self._environment = environment
        self._timeout_s = timeout_s
        self._screened = screened
        self._judge = judge_read_only if read_only else judge
        self._read_only = read_only
        self.tools = {
            "read_file": Tool(ReadFile, self._read),
            "list": Tool(ListFiles, self._list),
            "write_file": Tool(WriteFile, self._write),
            "edit_file": Tool(EditFile, self._edit),
            "run_command": Tool(RunCommand, self._run),
        }

    def close(self) -> None:
        """Let go of the workspace."""
        self._root.close()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Said:
        """Make a call; what goes wrong is said in words, with its code. Raises nothing but CancelledError."""
        tool = self.tools.get(name)
        if tool is None:
            return Said(f"unsupported_tool_name: there is no tool {name!r}", failed=True)
        try:
            said = await tool.does(tool.arguments.model_validate(arguments))
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)
            return Said(f"bad_arguments: {faults}", failed=True)
        except StepwiseError as error:
            return Said(f"{error.code}: {error.message}", failed=True)
        except (OSError, UnicodeError) as error:
            return Said(f"{type(error).__name__}: {error}", failed=True)
        return Said(cut(said.text, MAX_OUTPUT), failed=said.failed)

    async def _read(self, given: ReadFile) -> Said:
        text = await asyncio.to_thread(self._text, given.path)
        lines = text.splitlines(keepends=True)[given.offset - 1 :]
        return Said("".join(lines[: given.limit]))

    async def _list(self, given: ListFiles) -> Said:
        entries = await asyncio.to_thread(self._root.list, given.path, recursive=given.recursive)
        lines = [f"{entry.path}{'/' if entry.type == 'directory' else ''}" for entry in entries]
        return Said("\n".join(lines) or "(nothing)")

    async def _write(self, given: WriteFile) -> Said:
        self._check_may_write()
        data = given.content.encode()
        await asyncio.to_thread(self._root.write_atomic, given.path, data)
        return Said(f"Wrote {len(data)} bytes to {given.path}.")

    async def _edit(self, given: EditFile) -> Said:
        self._check_may_write()

        def replace() -> int:
            text = self._text(given.path)
            found = text.count(given.old)
            if found == 0:
                raise Denied("text_not_found", f"{given.path} does not contain the text")
            if found > 1 and not given.all:
                raise Denied("text_not_unique", f"{given.path} contains the text {found} times")
            self._root.write_atomic(given.path, text.replace(given.old, given.new).encode())
            return found

        found = await asyncio.to_thread(replace)
        return Said(f"Replaced {found} in {given.path}.")

    async def _run(self, given: RunCommand) -> Said:
        verdict = self._judge(given.command, workspace=str(self._workspace))
        if verdict.decision == "deny" or (verdict.decision == "ask" and not self._screened):
            raise Denied(verdict.code, verdict.reason)
        timeout_s = min(given.timeout_s or self._timeout_s, self._timeout_s)
        finished = await run(
            [_SHELL, "-c", given.command],
            cwd=self._workspace,
            env=self._environment,
            timeout_s=timeout_s,
            grace_s=_GRACE_S,
            max_output=_KEPT_BYTES,
        )
        return Said(_told(finished, timeout_s), failed=not finished.ok)

    def _check_may_write(self) -> None:
        if self._read_only:
            raise Denied("read_only", "nothing may be changed here")

    def _text(self, path: str) -> str:
        content = self._root.read(path)
        if content.truncated:
            raise Denied("file_too_large", f"{path} has {content.total_bytes} bytes")
        if b"\0" in content.data:
            raise PathDenied("E_PATH_NOT_REGULAR", path, "the file is no text")
        return content.data.decode()


def _told(finished: Finished, timeout_s: float) -> str:
    parts = [part.decode("utf-8", "replace") for part in (finished.stdout, finished.stderr) if part]
    if finished.timed_out:
        parts.insert(0, f"Ended after {timeout_s:g} seconds.\n")
    elif not finished.ok:
        parts.insert(0, f"Exit code {finished.exit_code}, signal {finished.signal}.\n")
    return "".join(parts) or "(no output)"
