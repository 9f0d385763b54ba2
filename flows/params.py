"""Fills a flow's parameters and the task into its objectives and commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from flows.findings import one_of
from flows.placeholders import TASK, fill, param_name, sole_param
from flows.values import EXAMPLES, Value, as_text, fits
from schemas.errors import BadInput
from schemas.flow import FlowSpec, Param
from schemas.run import MAX_SPEC_BYTES

_CODE = "BadFlowInput"


def resolve(spec: FlowSpec, given: Mapping[str, Value], task: str) -> FlowSpec:
    """Return the flow with every placeholder filled in; BadInput names the parameter and the mend.

    A text given for an ``argv`` parameter is split into words as a POSIX shell would, without running one.
    """
    for name in given:
        if name not in spec.params:
            mend = one_of(name, spec.params) if spec.params else "this flow has none"
            raise _bad(name, f"flow {spec.id!r} has no parameter {name!r}", mend)
    values = {name: _value(name, param, given) for name, param in spec.params.items()}
    _refuse_unusable("task", task)
    filler = _Filler(values, task)
    data = spec.model_dump(exclude_unset=True)
    for index, command in enumerate(data.get("setup", [])):
        data["setup"][index] = filler.argv(f"setup[{index}]", command)
    for step in data["steps"]:
        step["objective"] = filler.text(step["objective"])
        for gate in step.get("gates", []):
            gate["argv"] = filler.argv(f"gate {gate['name']!r} of step {step['id']!r}", gate["argv"])
    return FlowSpec.model_validate(data)


def _value(name: str, param: Param, given: Mapping[str, Value]) -> Value:
    if name not in given:
        if param.default is None:
            mend = f"give `params: {{{name}: …}}` ({param.type}{': ' + param.help if param.help else ''})"
            raise _bad(name, f"parameter {name!r} is required", mend)
        return param.default
    value = given[name]
    if param.type == "argv" and isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise _bad(
                name, f"{value!r} cannot be split into words: {error}", "give a list of words"
            ) from None
    if not fits(param.type, value):
        raise _bad(name, f"parameter {name!r} is no {param.type}: {value!r}", f"give {EXAMPLES[param.type]}")
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str):
            _refuse_unusable(f"params.{name}", text)
    return value


def _refuse_unusable(field: str, text: str) -> None:
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        mend = "remove the character"
        raise BadInput(_CODE, f"{field} holds NUL or half a character", mend=mend, field=field)


def _bad(name: str, message: str, mend: str) -> BadInput:
    return BadInput(_CODE, message, mend=mend, field=f"params.{name}")


class _Filler:
    """Fills in; what it makes of a flow stays as small as a flow that could be kept."""

    def __init__(self, values: Mapping[str, Value], task: str) -> None:
        self._values, self._task = values, task
        self._left = MAX_SPEC_BYTES

    def text(self, text: str) -> str:
        return fill(text, self._inside)

    def _taken(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise BadInput(
                "FlowRefused",
                f"with the task and the parameters filled in, the flow has more than {MAX_SPEC_BYTES} characters",
                mend="shorten the longest, or let fewer objectives and commands name it",
            )
        return text

    def argv(self, where: str, argv: list[Any]) -> list[str]:
        words: list[str] = []
        for element in argv:
            value = self._values.get(sole_param(element) or "")
            words += (
                [self._taken(word) for word in value] if isinstance(value, list) else [self.text(element)]
            )
        if not words or not words[0]:
            raise BadInput(
                _CODE, f"{where} is left without a program", mend="give its parameter a value", field="params"
            )
        return words

    def _inside(self, inside: str) -> str:
        if inside == TASK:
            return self._taken(self._task)
        value = self._values[param_name(inside) or inside]
        if isinstance(value, list):
            raise BadInput(
                _CODE, f"{inside} is a list and stands inside a text", mend="lint the flow", field=inside
            )
        return self._taken(as_text(value))
