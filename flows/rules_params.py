"""Lint rules for parameters: declared well, used where they are filled in, spliced whole where they are lists."""

from __future__ import annotations

from collections.abc import Iterator

from flows.findings import Fault, PathInFile, dotted, nearest
from flows.placeholders import PARAM_PREFIX, TASK, param_name, placeholders, sole_param
from flows.values import EXAMPLES, fits
from schemas.flow import FlowSpec, Param

Texts = Iterator[tuple[PathInFile, str]]


def param_faults(spec: FlowSpec) -> Iterator[Fault]:
    """Yield the faults of `params` and of every placeholder in the flow."""
    used: set[str] = set()
    for path, text in _texts((), spec.model_dump(exclude_unset=True)):
        if path[0] == "params":
            continue
        for inside in placeholders(text):
            name = param_name(inside)
            used.add(name or "")
            fault = _placeholder_fault(spec, path, text, inside)
            if fault is not None:
                yield fault
    for name, param in spec.params.items():
        yield from _declaration_faults(name, param)
        if name not in used:
            what = f"parameter {name!r} is used nowhere"
            yield Fault(("params", name), "unused_param", what, "use it or remove it", on_key=True)


def _declaration_faults(name: str, param: Param) -> Iterator[Fault]:
    path = ("params", name)
    if param.default is None:
        if not param.required:
            what = f"parameter {name!r} has no value if none is given"
            yield Fault(path, "param_without_value", what, "add `default:` or `required: true`", on_key=True)
    elif param.required:
        what = f"parameter {name!r} is required, so its default is never used"
        yield Fault((*path, "default"), "bad_default", what, "remove `default:` or `required:`")
    elif not fits(param.type, param.default):
        what = f"the default of {name!r} is no {param.type}: {param.default!r}"
        yield Fault(
            (*path, "default"), "bad_default", what, f"write {EXAMPLES[param.type]}, or change `type:`"
        )


def _placeholder_fault(spec: FlowSpec, path: PathInFile, text: str, inside: str) -> Fault | None:
    shown = dotted(path)
    name = param_name(inside)
    if inside != TASK and name is None:
        known = [f"{PARAM_PREFIX}{param}" for param in spec.params]
        near = nearest(inside, [TASK, *known])
        mend = f"did you mean ${{{near}}}? " if near else ""
        mend += "only ${task} and ${params.<name>} are filled in; write $${ for a plain ${"
        return Fault(path, "unknown_param", f"`{shown}`: ${{{inside}}} stands for nothing", mend)
    if not _is_filled(path):
        mend = "they are filled in objectives, gate argv and setup only"
        return Fault(path, "param_not_filled", f"`{shown}`: ${{{inside}}} is not filled in here", mend)
    if name is None:
        return None
    if name not in spec.params:
        near = nearest(name, list(spec.params))
        mend = f"did you mean {near!r}?" if near else f"declare it: `params: {{{name}: {{required: true}}}}`"
        return Fault(path, "unknown_param", f"`{shown}`: no parameter is named {name!r}", mend)
    if spec.params[name].type == "argv" and not (_is_argv(path) and sole_param(text) == name):
        what = f"`{shown}`: {name!r} is a list of words and cannot stand inside a text"
        return Fault(path, "argv_in_text", what, "let it be a whole element of an argv, or change its type")
    return None


def _is_argv(path: PathInFile) -> bool:
    return path[0] == "setup" or (len(path) > 4 and path[2] == "gates" and path[4] == "argv")  # noqa: PLR2004


def _is_filled(path: PathInFile) -> bool:
    return _is_argv(path) or (path[0] == "steps" and path[2:] == ("objective",))


def _texts(path: PathInFile, value: object) -> Texts:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts((*path, key), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts((*path, index), inner)
