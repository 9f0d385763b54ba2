"""``stepwise doctor``: what a run needs, looked at one by one, each with its mend."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from cli.checks import Check, local_checks
from cli.checks_server import server_checks
from cli.options import AsJson
from cli.session import say, say_json, settings
from system.settings import Loaded, SettingsRefused, resolved

_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


def doctor(
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Register missing search attributes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check what runs need; exit code 1 if they cannot work.

    This machine, the Temporal server and the worker are looked at. Each line says what was seen, and under what is wrong, how to mend it. WARN: runs work, something is missing.
    """
    checks = asyncio.run(_all(fix=fix))
    if as_json:
        say_json([asdict(check) for check in checks])
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            say(f"{_MARKS[check.verdict]}  {check.name:<{width}}  {check.seen}")
            if check.mend and check.verdict != "ok":
                say(f"      {'':<{width}}  -> {check.mend}")
    if any(check.verdict == "fail" for check in checks):
        raise typer.Exit(1)


async def _all(*, fix: bool) -> list[Check]:
    try:
        loaded: Loaded = settings()
        effective = resolved(loaded.settings)
    except SettingsRefused as error:
        return [Check("settings", "fail", error.message, error.mend or "")]
    checks = [Check("settings", "ok", "can be read: stepwise config shows them")]
    checks += local_checks(effective, temporal_is_loopback=loaded.is_loopback)
    checks += [check async for check in server_checks(loaded, fix=fix)]
    return checks
