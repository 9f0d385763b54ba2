"""One run by its name, as people type it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from schemas.errors import BadInput, StepwiseError
from schemas.run_record import RunRecord
from store.evidence import Evidence
from store.runs import Runs

MAX_NAMED: Final = 5
"""How many runs an error names."""


def find(word: str, evidence: Evidence) -> RunRecord:
    """Return the record of the run a person means: a run id, a workflow id (its newest run), or the beginning of one.

    Raises BadInput E_RUN, which names what comes close.
    """
    records = Runs(evidence).list()
    named = [record for record in records if word in {record.run_id, record.workflow_id}]
    exact = [record for record in named if record.run_id == word] or named
    if exact:
        return exact[-1]
    begin = [record for record in records if word and _begins(record, word)]
    workflows = {record.workflow_id for record in begin}
    if len(workflows) == 1 and (len(begin) == 1 or begin[0].workflow_id.startswith(word)):
        return begin[-1]
    if begin:
        raise BadInput(
            "E_RUN",
            f"{word!r} is the beginning of {len(begin)} runs",
            mend=f"say more of one of them: {_some(record.run_id for record in reversed(begin))}",
        )
    raise unknown(word, records)


def unknown(word: str, records: Iterable[RunRecord]) -> StepwiseError:
    """Return the error for a run that is not in the store."""
    newest_first = list(reversed(list(records)))
    names = {name: None for record in newest_first for name in (record.workflow_id, record.run_id)}
    near = difflib.get_close_matches(word, names, n=MAX_NAMED, cutoff=0.5)
    if near:
        mend = f"did you mean {' or '.join(near)}?"
    elif newest_first:
        mend = f"`stepwise runs` lists them; the newest: {_some(one.run_id for one in newest_first)}"
    else:
        mend = "the store has no runs; name another one with --store or STEPWISE_STORE"
    return BadInput("E_RUN", f"there is no run {word!r}", mend=mend)


def _begins(record: RunRecord, word: str) -> bool:
    return record.run_id.startswith(word) or record.workflow_id.startswith(word)


def _some(names: Iterable[str]) -> str:
    first, *more = list(names)
    shown = [first, *more[: MAX_NAMED - 1]]
    return ", ".join(shown) + (", …" if len(more) >= MAX_NAMED else "")
