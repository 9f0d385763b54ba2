"""Which fields there are where a fault in some input is, so that who wrote it can be told."""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel


def fields_beside(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Return the fields of the object that a place in a model is in; none where that cannot be told."""
    inside = model
    for part in place[:-1]:
        field = inside.model_fields.get(str(part))
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if len(models) == 1:
            inside = models[0]
        elif part != inside.__name__:
            # Of several kinds of value, the place names the one that was meant.
            return []
    return list(inside.model_fields)
