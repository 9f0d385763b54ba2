"""The rules of a branch: which facts they can name, and when one matches. Unknown never matches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby

from pydantic import BaseModel

from schemas.facts import GateFact, StepFacts
from schemas.flow import Scalar, When

Values = Mapping[str, Scalar | list[str]]


def fact_values(facts: StepFacts) -> dict[str, Scalar | list[str]]:
    """Return what is known, by the name a rule uses: ``status``, ``file_changes.created``, ``gates.unit.passed``.

    A value that is absent or not finite is left out; a gate that was not measured says only so.
    """
    values = _flat("", facts)
    named = sorted(facts.gates, key=lambda gate: gate.name)
    for name, same in groupby(named, key=lambda gate: gate.name):
        gates = list(same)
        if len(gates) == 1:  # two results under one name contradict each other: neither is known
            values.update(_gate(name, gates[0]))
    return values


def matches(when: When, values: Values) -> tuple[bool, str]:
    """Say whether a rule holds for the known values, and in half a sentence why or why not."""
    rule = f"{when.field} {when.operator} {when.value!r}"
    if when.field not in values:
        return False, f"{rule}: there is no known value of this name"
    fact = values[when.field]
    holds = _compare(fact, when)
    if holds is None:
        return False, f"{rule}: the operator does not fit {fact!r}"
    return holds, f"{rule}: the value is {fact!r}"


def _compare(fact: Scalar | list[str], when: When) -> bool | None:
    """Return whether the rule holds, or None where the types do not fit the operator."""
    value = when.value
    if when.operator == "contains":
        return value in fact if isinstance(value, str) and isinstance(fact, str | list) else None
    if isinstance(fact, list):
        return None
    if when.operator in {"equals", "not_equals"}:
        if isinstance(value, list) or not _comparable(fact, value):
            return None
        return (fact == value) == (when.operator == "equals")
    if not isinstance(value, list) or not value or not all(_comparable(fact, item) for item in value):
        return None
    return (fact in value) == (when.operator == "in")


def _comparable(fact: Scalar, value: Scalar) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return _kind(fact) == _kind(value)


def _kind(value: Scalar) -> str:
    # bool comes first: Python counts it among the numbers, a flow author does not
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"


def _gate(name: str, gate: GateFact) -> dict[str, Scalar | list[str]]:
    prefix = f"gates.{name}."
    if gate.measured:
        return _flat(prefix, gate)
    return {f"{prefix}measured": False, f"{prefix}required": gate.required}


def _flat(prefix: str, model: BaseModel) -> dict[str, Scalar | list[str]]:
    values: dict[str, Scalar | list[str]] = {}
    for key, value in model:
        if isinstance(value, BaseModel):
            values.update(_flat(f"{prefix}{key}.", value))
        elif isinstance(value, float):
            if math.isfinite(value):
                values[prefix + key] = value
        elif isinstance(value, str | int):
            values[prefix + key] = value
        elif isinstance(value, list) and all(isinstance(item, str) for item in value) and key != "gates":
            values[prefix + key] = list(value)
    return values
