"""Loads the worker's settings: defaults, then a TOML file, then the environment; each value knows its origin.

```
BadInput
└── SettingsRefused       a setting is unknown or its value cannot be used; says where, and the mend
```
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from policy.secrets import is_secret_name
from schemas.errors import BadInput
from schemas.settings import WorkerSettings

PREFIX: Final = "STEPWISE_"
CONFIG_VARIABLE: Final = "STEPWISE_CONFIG"
"""Names the settings file (empty: none is read); unset, ``stepwise.toml`` of the working folder is, if there."""
CONFIG_NAME: Final = "stepwise.toml"
DEFAULT_ADDRESS: Final = "127.0.0.1:7233"
DEFAULT_NAMESPACE: Final = "default"
MASK: Final = "***"

# Set for the children of a run, which may well call `stepwise` themselves.
_NOT_SETTINGS: Final = frozenset({CONFIG_VARIABLE, "STEPWISE_RUN"})
_VARIABLE_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s]+@")
_TEMPORAL_VARIABLES: Final = {
    "target_host": "TEMPORAL_ADDRESS",
    "namespace": "TEMPORAL_NAMESPACE",
    "api_key": "TEMPORAL_API_KEY",
    "tls": "TEMPORAL_TLS",
    "rpc_metadata": "TEMPORAL_GRPC_META",
}
_TEMPORAL_SHOWN: Final = ("target_host", "namespace")


class SettingsRefused(BadInput):
    """Raised for an unknown setting or a value of the wrong kind; ``details["origin"]`` says where it stands."""

    def __init__(self, message: str, *, origin: str, mend: str) -> None:
        super().__init__("E_SETTING", message, mend=mend, origin=origin)


@dataclass(frozen=True)
class Loaded:
    """Settings with the origin of each (``default``, ``file PATH:LINE``, ``environment NAME``).

    ``temporal`` is what ``Client.connect`` takes; its address and namespace are always there.
    """

    settings: WorkerSettings
    origins: Mapping[str, str]
    temporal: ClientConnectConfig
    temporal_origins: Mapping[str, str]

    @property
    def address(self) -> str:
        """Return host and port of the Temporal server."""
        return self.temporal["target_host"]

    @property
    def namespace(self) -> str:
        """Return the Temporal namespace."""
        return self.temporal["namespace"]

    @property
    def is_loopback(self) -> bool:
        """Say whether the server is on this machine, so that a folder of it is seen by every worker."""
        host = self.address.rpartition(":")[0].strip("[]")
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def load(env: Mapping[str, str], config_file: Path | None = None) -> Loaded:
    """Return the settings of ``env`` over those of the file. Raises SettingsRefused for whatever is wrong."""
    path = _config_path(env, config_file)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(WorkerSettings.model_fields, "default")
    if path is not None:
        for name, (value, origin) in _from_file(path).items():
            values[name], origins[name] = value, origin
    for name, (value, origin) in _from_environment(env).items():
        values[name], origins[name] = value, origin
    settings = WorkerSettings(**values)
    _check(settings, origins)
    temporal, temporal_origins = _temporal(env)
    return Loaded(settings, origins, temporal, temporal_origins)


def resolved(settings: WorkerSettings) -> WorkerSettings:
    """Return the settings with absolute paths and the store's URL. Raises SettingsRefused without a home."""
    data_dir = _expanded(settings.data_dir)
    return settings.model_copy(
        update={
            "data_dir": data_dir,
            "store": settings.store or (data_dir / "store").as_uri(),
            "flow_paths": [_expanded(path) for path in settings.flow_paths],
        }
    )


def shown(value: object) -> str:
    """Return a setting's value as people may see it: credentials in URLs are masked, lists are joined."""
    if isinstance(value, list):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return _USERINFO.sub(f"{MASK}@", str(value))


def shown_temporal(loaded: Loaded) -> dict[str, str]:
    """Return the connection's arguments as people may see them: only address and namespace in clear."""
    known = {"target_host": loaded.address, "namespace": loaded.namespace}
    return known | {name: MASK for name in loaded.temporal if name not in _TEMPORAL_SHOWN}


def _config_path(env: Mapping[str, str], config_file: Path | None) -> Path | None:
    if config_file is None and CONFIG_VARIABLE in env:
        if not env[CONFIG_VARIABLE]:
            return None
        config_file = Path(env[CONFIG_VARIABLE])
    if config_file is None:
        found = Path.cwd() / CONFIG_NAME
        return found if found.is_file() else None
    path = _expanded(config_file)
    if not path.is_file():
        raise SettingsRefused(
            f"there is no settings file {path}",
            origin=f"environment {CONFIG_VARIABLE}" if CONFIG_VARIABLE in env else str(path),
            mend=f"correct {CONFIG_VARIABLE} or leave it unset",
        )
    return path


def _from_file(path: Path) -> dict[str, tuple[Any, str]]:
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsRefused(
            f"{path} cannot be read: {error}", origin=f"file {path}", mend="it must be TOML"
        ) from error
    found: dict[str, tuple[Any, str]] = {}
    for name, value in table.items():
        origin = f"file {path}{_line(text, name)}"
        if name not in WorkerSettings.model_fields:
            raise _unknown(name, origin, list(WorkerSettings.model_fields))
        try:
            # Strict, by way of JSON: TOML has types, so that the text "4" for a number is a mistake.
            checked = WorkerSettings.model_validate_json(json.dumps({name: value}), strict=True)
        except (ValidationError, TypeError) as error:
            raise _wrong(name, origin, error) from error
        found[name] = (_anchored(checked.model_dump()[name], path.parent), origin)
    return found


def _line(text: str, name: str) -> str:
    """Return ``:LINE`` of a key, or nothing where a multi-line text could hide a look-alike."""
    if '"""' in text or "'''" in text:
        return ""
    pattern = re.compile(rf"""\s*["']?{re.escape(name)}["']?\s*[=.\]]|\s*\[+\s*{re.escape(name)}\b""")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return f":{number}"
    return ""


def _anchored(value: Any, folder: Path) -> Any:
    """Make paths of a settings file relative to that file, not to wherever the worker was started."""
    if isinstance(value, list):
        return [_anchored(item, folder) for item in value]
    if isinstance(value, Path):
        return value if value.parts[:1] and value.parts[0].startswith("~") else folder / value
    return value


def _from_environment(env: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in _NOT_SETTINGS:
            continue
        name, origin = variable.removeprefix(PREFIX).lower(), f"environment {variable}"
        known = [PREFIX + field.upper() for field in WorkerSettings.model_fields]
        if variable not in known:
            raise _unknown(variable, origin, [*known, CONFIG_VARIABLE])
        try:
            raw: Any = env[variable]
            if isinstance(WorkerSettings.model_fields[name].default, list):
                raw = _list(raw)
            checked = WorkerSettings.model_validate({name: raw})
        except ValueError as error:
            raise _wrong(variable, origin, error) from error
        found[name] = (checked.model_dump()[name], origin)
    return found


def _list(raw: str) -> Any:
    if raw.lstrip().startswith("["):
        return json.loads(raw)
    return [item.strip() for item in raw.split(",") if item.strip()]


def _unknown(name: str, origin: str, known: list[str]) -> SettingsRefused:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`stepwise config` lists them"
    return SettingsRefused(
        f"{origin}: there is no setting {name}", origin=origin, mend=f"{hint} Correct or remove it"
    )


def _wrong(name: str, origin: str, error: Exception) -> SettingsRefused:
    field = WorkerSettings.model_fields[name.removeprefix(PREFIX).lower()]
    if isinstance(error, ValidationError):
        what = error.errors(include_input=False)[0]["msg"]  # the value may be a secret: never echoed
    elif isinstance(error, json.JSONDecodeError):
        what = f"not a JSON list: {error.msg}"
    else:
        what = "a value of this kind is not expected"
    return SettingsRefused(f"{origin}: {name}: {what}", origin=origin, mend=f"meaning: {field.description}")


def _check(settings: WorkerSettings, origins: Mapping[str, str]) -> None:
    """Refuse what the types let through: an infinite time, an empty path, a token where its name belongs."""

    def refuse(name: str, what: str, mend: str) -> SettingsRefused:
        return SettingsRefused(f"{origins[name]}: {name}: {what}", origin=origins[name], mend=mend)

    for name, value in settings.model_dump().items():
        if isinstance(value, float) and not math.isfinite(value):
            raise refuse(name, "must be a finite number", "say a number of seconds")
        if value == Path():
            raise refuse(name, "is empty", "say a folder or leave it unset")
    secret = next((name for name in settings.environment if is_secret_name(name)), None)
    if secret is not None:
        raise refuse(
            "environment",
            f"{secret} is the name of a secret, which never passes to gates, set-up commands or agents",
            "remove it; a command that needs such a value reads it from a file that its own machine keeps",
        )
    if settings.store and "://" not in settings.store:
        raise refuse("store", "is not a URL", "say it as file:///absolute/path")
    if settings.git_credentials and not _VARIABLE_NAME.fullmatch(settings.git_credentials):
        raise refuse(
            "git_credentials",
            "is not the name of a variable",
            "put the token into a variable such as GIT_TOKEN and say that name here",
        )


def _expanded(path: Path) -> Path:
    try:
        return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - resolve() would follow links
    except RuntimeError as error:
        raise SettingsRefused(
            f"{path}: there is no home folder here", origin=str(path), mend="say an absolute path or set HOME"
        ) from error


def _temporal(env: Mapping[str, str]) -> tuple[ClientConnectConfig, dict[str, str]]:
    file, profile = _temporal_file(env), env.get("TEMPORAL_PROFILE") or "default"
    if file is None and profile != "default":
        raise SettingsRefused(
            f"there is no file with the Temporal profile {profile}",
            origin="environment TEMPORAL_PROFILE",
            mend="set TEMPORAL_CONFIG_FILE or leave TEMPORAL_PROFILE unset",
        )
    try:
        found = ClientConfig.load_client_connect_config(
            config_file=None if file is None else str(file),
            disable_file=file is None,
            override_env_vars=dict(env),
        )
    except RuntimeError as error:
        where = "the environment" if file is None else str(file)
        raise SettingsRefused(
            f"the connection to Temporal cannot be read from {where}: {error}",
            origin=where,
            mend="correct TEMPORAL_PROFILE, the file or the TEMPORAL_ variables",
        ) from error
    origins: dict[str, str] = {"target_host": "default", "namespace": "default"}
    for name in found:
        variable = _TEMPORAL_VARIABLES[name]
        set_here = next(
            (key for key in sorted(env) if key == variable or key.startswith(f"{variable}_")), None
        )
        origins[name] = f"environment {set_here}" if set_here else f"file {file} profile {profile}"
    if found.get("tls") is True and origins["tls"].startswith("file") and "api_key" in found:
        origins["tls"] = origins["api_key"]  # a key switches TLS on by itself
    found.setdefault("target_host", DEFAULT_ADDRESS)
    found.setdefault("namespace", DEFAULT_NAMESPACE)
    return found, origins


def _temporal_file(env: Mapping[str, str]) -> Path | None:
    """Return the file Temporal's own tools would read, taken from ``env`` alone."""
    if named := env.get("TEMPORAL_CONFIG_FILE"):
        if not Path(named).exists():
            raise SettingsRefused(
                f"there is no file {named}",
                origin="environment TEMPORAL_CONFIG_FILE",
                mend="correct TEMPORAL_CONFIG_FILE or leave it unset",
            )
        return Path(named)
    home = env.get("HOME")
    if sys.platform == "darwin":
        folder = Path(home) / "Library" / "Application Support" if home else None
    else:
        config = env.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
        folder = Path(config) if config else None
    path = folder / "temporalio" / "temporal.toml" if folder else None
    return path if path is not None and path.is_file() else None
