"""What a run and its evidence say, but for names, times and tokens: what two runs of one script are compared by.

Everything is compared that is not named here. What is left out, and why, is the tables below; the run's id is RUN, and a
commit is the tree it has, since a commit's message names the run.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from conftest import Rig
from flow_kit import envelope_of, git

from schemas.receipt import StepReceipt
from schemas.run import FlowResult

_NAMES: Final = "it names the agent, its model or the run"
_TIMES: Final = "it is a moment or how long something took"
_TOKENS: Final = "it counts tokens or their price"
_DIGEST: Final = (
    "it is a digest of what differs in names, times and tokens; check_evidence verifies the chain"
)
_CONTENT: Final = "of contents that are compared themselves, or that have times in them"
_WORDS: Final = "the program's own words of it; what counts of them is compared"

LEFT_OUT: Final[Mapping[str, Mapping[str, str]]] = {
    "receipt": {
        "run_id": _NAMES,
        "transport": _NAMES,
        "provider": _NAMES,
        "model": _NAMES,
        "tool_name": _NAMES,
        "started_at": _TIMES,
        "completed_at": _TIMES,
        "duration_ms": _TIMES,
        "elapsed_ms": _TIMES,
        "token_counts": _TOKENS,
        "cost_usd": _TOKENS,
        "previous_sha256": _DIGEST,
        "sha256": _CONTENT,
        "bytes": _CONTENT,
    },
    "envelope": {"run_id": _NAMES, "timestamp": _TIMES, "sha256": _CONTENT, "bytes": _CONTENT},
    "call": {
        "tool_name": _NAMES,
        "source": _NAMES,
        "call_id": _NAMES,
        "operation": "a file is read with a tool or with cat",
        "timestamp": _TIMES,
        "duration_ms": _TIMES,
        "input": _WORDS,
        "output": _WORDS,
    },
    "result": {"run_id": _NAMES, "elapsed_ms": _TIMES, "usage": _TOKENS, "receipts_head": _DIGEST},
}
"""The fields that are not compared, by what they are of, each with its reason."""

_COMMIT: Final = re.compile(r"\A[0-9a-f]{40}\Z")
_CAT: Final = re.compile(r"\Acat (\S+)\Z")
_EXIT: Final = re.compile(r"\A[Ee]xit code (\d+)(?:, signal None)?\.?\n")
_LASTED: Final = re.compile(r"\d+\.\d+s")
_NUMBERED: Final = re.compile(r"^\d+\t", re.MULTILINE)
_PATHS: Final = ("file_path", "path")


def told(rig: Rig, result: FlowResult) -> dict[str, Any]:
    """Return all that a run and its evidence say, in the form in which two runs can be compared."""
    form = _Form(rig, result)
    receipts = rig.receipts(result.run_id)
    return {
        "result": form.of("result", result.model_dump(mode="json")),
        "receipts": [form.of("receipt", one.model_dump(mode="json")) for one in receipts],
        "envelopes": [form.of("envelope", envelope_of(rig, one).model_dump(mode="json")) for one in receipts],
        "calls": [form.calls(one) for one in receipts],
        "journal": [event.kind for event in rig.journal(result.run_id)],
    }


class _Form:
    def __init__(self, rig: Rig, result: FlowResult) -> None:
        assert result.git is not None
        self._rig, self._run_id = rig, result.run_id
        self._workspace = Path(result.git.workspace)

    def of(self, kind: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            left = LEFT_OUT[kind]
            return {key: self.of(kind, one) for key, one in value.items() if key not in left}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self.of(kind, one) for one in value]
        if not isinstance(value, str):
            return value
        is_commit = _COMMIT.match(value) and git(self._workspace, "cat-file", "-t", value) == "commit"
        return (
            git(self._workspace, "rev-parse", f"{value}^{{tree}}")
            if is_commit
            else value.replace(self._run_id, "RUN")
        )

    def calls(self, receipt: StepReceipt) -> list[dict[str, Any]]:
        """Return an attempt's calls in their order: what each did, to what, its verdict, and what it showed."""
        if receipt.tool_calls.ref is None:
            return []
        lines = self._rig.evidence.read(receipt.tool_calls.ref).splitlines()
        return [self._call(json.loads(line)) for line in lines]

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        did, given = call["operation"], call["input"]
        with contextlib.suppress(ValueError):
            # Else it is a command as it is typed.
            given = json.loads(given)
        if did == "run":
            found = self._command(given)
            cat = _CAT.match(found)
            did, what = ("read", cat[1]) if cat else ("run", found)
        else:
            what = self._path(given)
        shown = {} if call["blocked"] or did == "write" else self._shown(did, call)
        return {"did": did, "to": what, **shown, **self.of("call", call)}

    def _command(self, given: Any) -> str:
        if isinstance(given, Mapping):
            return str(given["command"])
        return given if isinstance(given, str) else " ".join(given)

    def _path(self, given: Any) -> str:
        """Return the one path a call is about, below the workspace."""
        if isinstance(given, list):
            (given,) = given
        path = next(given[name] for name in _PATHS if name in given)
        return str(Path(self._workspace, path).relative_to(self._workspace))

    def _shown(self, did: str, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a call printed, and the exit code of a command."""
        output = str(call["output"])
        found = _EXIT.match(output)
        output = _EXIT.sub("", output)
        if did == "read":
            return {"shows": _NUMBERED.sub("", output).strip()}
        plain = _LASTED.sub("TIME", self.of("call", output)).strip()
        return {"exit_code": int(found[1]) if found else 0, "shows": plain}
