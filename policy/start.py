"""What may not stand in the start of a run: a history keeps it in clear, and a name that is redacted is found no more. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from policy.secrets import key_within, redact
from schemas.errors import BadInput
from schemas.run import FlowInput

_USERINFO: Final = re.compile(r"(?<=://)[^/@]*@")
_MEND: Final = "leave it out; a command that needs it reads it from a file that the worker's machine keeps"


def refuse_secrets(
    given: FlowInput,
    *ids: str,
    redacted: Callable[[str], str] = redact,
    known: Callable[[str], bool] = lambda _: False,
) -> None:
    """Raise BadInput for a key in what a person typed, and for a name among ``ids`` that reads like a secret.

    ``ids`` are the workflow's and the run's; ``redacted`` is what will be done to them in the store, ``known`` says
    whether a text has a value that is known to be secret.
    """
    names = [("the workflow id", one) for one in ids]
    # User-info in a URL is refused where URLs are read, with the setting that names a token.
    repo = _USERINFO.sub("", given.repo)
    for name, text in (*names, ("repo", repo), ("base", given.base or "")):
        if redacted(text) != text:
            raise BadInput(
                "BadFlowInput",
                f"{name} reads like a secret and would be redacted wherever it stands",
                mend="choose another",
            )
    typed = {**given.model_dump(mode="json", exclude_unset=True), "repo": repo}
    found = key_within(typed)
    if found is not None:
        where, kind = found
        code = "FlowRefused" if where.startswith(("spec.", "scenario")) else "BadFlowInput"
        raise BadInput(code, f"{where} holds what looks like a secret ({kind})", mend=_MEND)
    if known(json.dumps(typed, ensure_ascii=False)):
        raise BadInput("BadFlowInput", "the input holds a secret of this worker", mend=_MEND)
