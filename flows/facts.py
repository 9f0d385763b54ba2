"""The names a branch rule may compare: what `workflows.routing` knows of a step, by dotted path."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from schemas.facts import GateFact, StepFacts

_GATES = "gates"


def fact_names(gates: Iterable[str]) -> list[str]:
    """Return every name a rule may use in a step with these gates, sorted: ``status``, ``gates.tests.passed``."""
    names = [name for name in _names(StepFacts) if name != _GATES]
    for gate in gates:
        names += [f"{_GATES}.{gate}.{name}" for name in _names(GateFact) if name != "name"]
    return sorted(names)


def _names(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is None:
            yield name
        else:
            yield from (f"{name}.{rest}" for rest in _names(inner))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    options = get_args(annotation) if get_origin(annotation) is types.UnionType else (annotation,)
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None
