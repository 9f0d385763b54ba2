"""Scenario files: reading them, and which turn of one an attempt plays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from schemas.envelopes import ErrorEnvelope
from schemas.scenario import Scenario, Turn
from transports.port import TransportError

MAX_SCENARIO_BYTES: Final = 1_000_000
"""Larger scenario files are refused."""

_NOTHING: Final = Scenario(version=1)
_IDLE: Final = Turn()


def read_scenario(path: str | None) -> Scenario:
    """Return the scenario in the YAML (or JSON) file ``path``, the empty one for None; raises TransportError."""
    if path is None:
        return _NOTHING
    try:
        stat = Path(path).stat()
        return _read(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise _refused("scenario_missing", f"the scenario cannot be read: {error}") from error


@lru_cache(maxsize=1_024)
def _read(path: str, _inode: int, _mtime_ns: int, size: int) -> Scenario:
    if size > MAX_SCENARIO_BYTES:
        raise _refused("scenario_invalid", f"a scenario may have {MAX_SCENARIO_BYTES} bytes, not {size}")
    try:
        return Scenario.model_validate(YAML(typ="safe", pure=True).load(Path(path).read_bytes()))
    except (YAMLError, ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise _refused("scenario_invalid", f"the scenario cannot be used: {error}") from error


def _refused(code: str, message: str) -> TransportError:
    return TransportError(ErrorEnvelope(code=code, message=message))


def turn_of(scenario: Scenario, place: Mapping[str, str | int], *, resumed: bool) -> tuple[str, Turn]:
    """Return the turn for a place, and the key its progress is kept under.

    ``resumed`` says that an earlier attempt's session is gone on with: the script's ``resumed`` turn, if it has
    one, is then played from its start, once per attempt.
    """
    key = f"{place['step']}.{place['visit']}"
    script = scenario.steps.get(str(place["step"]))
    if script is None:
        return key, _IDLE
    if resumed and script.resumed is not None:
        return f"{key}.resumed.{place['attempt']}", script.resumed
    visit = int(place["visit"])
    return key, script.turns[min(visit, len(script.turns)) - 1]
