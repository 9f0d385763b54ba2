"""``stepwise config``: every setting, its value, where it comes from, what it means."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from cli.options import AsJson
from cli.session import say_json, settings
from schemas.settings import WorkerSettings
from system.settings import Loaded, resolved, shown, shown_temporal

_TEMPORAL_MEANINGS = {
    "target_host": "Address of the Temporal server.",
    "namespace": "Temporal namespace.",
    "api_key": "Key for the Temporal server.",
    "tls": "How the connection is encrypted.",
    "rpc_metadata": "Headers of every call.",
}
_PIPE_WIDTH = 1_000


def config(*, as_json: AsJson = False) -> None:
    """Show every setting: its value, where it comes from, what it means.

    Settings come from STEPWISE_ variables, else from stepwise.toml in the working folder (or the file
    STEPWISE_CONFIG names), else from the defaults. The connection comes from Temporal's own variables and
    profile file. Secrets are masked.
    """
    loaded = settings()
    if as_json:
        say_json(_data(loaded))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("setting", "value", "origin", "meaning"):
        table.add_column(title, overflow="fold")
    for group in _data(loaded).values():
        for name, row in group.items():
            value = row["value"]
            cells = (name, shown(value) if value not in ("", []) else "-", row["origin"], row["meaning"])
            # No markup: a value may hold brackets.
            table.add_row(*(console.render_str(cell, markup=False, highlight=False) for cell in cells))
    console.print(table)


def _data(loaded: Loaded) -> dict[str, dict[str, dict[str, Any]]]:
    values = resolved(loaded.settings).model_dump(mode="json")
    own = {
        name: {"value": _masked(values[name]), "origin": loaded.origins[name], "meaning": field.description}
        for name, field in WorkerSettings.model_fields.items()
    }
    temporal = {
        f"temporal.{name}": {
            "value": value,
            "origin": loaded.temporal_origins[name],
            "meaning": _TEMPORAL_MEANINGS[name],
        }
        for name, value in shown_temporal(loaded).items()
    }
    return {"settings": own, "temporal": temporal}


def _masked(value: Any) -> Any:
    if isinstance(value, list):
        return [_masked(item) for item in value]
    return shown(value) if isinstance(value, str) else value
