"""Lint rules for flows that follow one another: known, sound, bounded, never in a circle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flows.findings import Fault
from flows.known import MAX_CHAIN
from schemas.flow import FlowSpec


@dataclass(frozen=True)
class NoFlow:
    """Why a name leads to no flow, and how to mend it."""

    what: str
    mend: str


Follow = Callable[[str], FlowSpec | NoFlow]
"""Returns the flow of a name, or says why there is none."""


def chain_faults(spec: FlowSpec, follow: Follow) -> Iterator[Fault]:
    """Yield the faults of `on_complete` and `on_failure` and of every flow they lead to."""
    for key, chain in (("on_complete", spec.on_complete), ("on_failure", spec.on_failure)):
        if chain is not None:
            fault = _walk(key, [spec.id], chain.flow, follow)
            if fault is not None:
                yield fault


def _walk(key: str, before: list[str], name: str, follow: Follow) -> Fault | None:
    """Return the first fault on any way on from `name`."""
    path = (key, "flow")
    way = " → ".join([*before, name])
    if name in before:
        return Fault(path, "chain_cycle", f"the flows go in a circle: {way}", "let the last one end")
    if len(before) >= MAX_CHAIN:
        what = f"more than {MAX_CHAIN} flows follow one another: {way}"
        return Fault(path, "chain_too_deep", what, "join some of them into one flow")
    found = follow(name)
    if isinstance(found, NoFlow):
        return Fault(path, "bad_chained_flow", f"{way}: {found.what}", found.mend)
    for chain in (found.on_complete, found.on_failure):
        if chain is not None:
            fault = _walk(key, [*before, name], chain.flow, follow)
            if fault is not None:
                return fault
    return None
