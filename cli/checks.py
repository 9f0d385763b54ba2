"""What ``stepwise doctor`` looks at on this machine, and the form of every check's result."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from schemas.errors import BadInput, StepwiseError
from schemas.settings import WorkerSettings
from store.blobs import open_blobs, store_folder
from system.devserver import DevServerFailed, temporal_binary
from transports import registry
from transports.credentials import KEYS
from transports.trial import tried

PYTHON: Final = (3, 11)
GIT: Final = (2, 39)
FREE_BYTES: Final = 1_000_000_000
"""With less free space than this a warning is given."""

Verdict = Literal["ok", "warn", "fail"]
"""``fail``: runs cannot work; ``warn``: they can, with something missing."""


@dataclass(frozen=True)
class Check:
    """One thing looked at: the verdict, what was seen, and how to mend it."""

    name: str
    verdict: Verdict
    seen: str
    mend: str = ""


def local_checks(settings: WorkerSettings, *, temporal_is_loopback: bool) -> Iterator[Check]:
    """Look at this machine; ``settings`` are resolved."""
    yield _python()
    yield _git()
    yield _temporal()
    yield _store(settings, temporal_is_loopback=temporal_is_loopback)
    yield _folder("data folder", settings.data_dir, "STEPWISE_DATA_DIR")
    yield from _transports(settings)


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < PYTHON:
        return Check("python", "fail", version, f"use Python {PYTHON[0]}.{PYTHON[1]} or later")
    return Check("python", "ok", version)


def _git() -> Check:
    mend = f"install git {GIT[0]}.{GIT[1]} or later"
    program = shutil.which("git")
    if program is None:
        return Check("git", "fail", "not found on PATH", mend)
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        return Check("git", "fail", f"{program} cannot be started: {error}", "look at the machine's limits")
    said = done.stdout.strip()
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < GIT:
        return Check("git", "fail", said or "no version", mend)
    return Check("git", "ok", said)


def _temporal() -> Check:
    try:
        return Check("temporal program", "ok", str(temporal_binary()))
    except DevServerFailed as error:
        return Check("temporal program", "warn", error.message, error.mend or "")


def _store(settings: WorkerSettings, *, temporal_is_loopback: bool) -> Check:
    try:
        open_blobs(
            settings.store,
            fsync=settings.fsync,
            shared=settings.store_shared,
            temporal_is_loopback=temporal_is_loopback,
        )
    except StepwiseError as error:
        mend = error.mend or "make it writable for this user or name another one in STEPWISE_STORE"
        return Check("store", "fail", error.message, mend)
    return _folder("store", store_folder(settings.store), "STEPWISE_STORE")


def _folder(name: str, folder: Path, variable: str) -> Check:
    """Say whether files can be made in a folder, or in the nearest one above it that exists."""
    mend = f"make it writable for this user or name another one in {variable}"
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Check(name, "fail", f"{folder}: {error.strerror}", mend)
    free = shutil.disk_usage(existing).free
    if free < FREE_BYTES:
        return Check(name, "warn", f"{folder}: {free // 1_000_000} MB free", "make room on that disk")
    return Check(name, "ok", f"{folder}{'' if existing == folder else ' (will be made)'}")


def _transports(settings: WorkerSettings) -> Iterator[Check]:
    chosen = "transports" in settings.model_fields_set
    if settings.default_transport not in settings.transports:
        yield Check(
            "default transport",
            "fail",
            f"{settings.default_transport} is not offered ({', '.join(settings.transports) or 'none is'})",
            "add it to STEPWISE_TRANSPORTS or change STEPWISE_DEFAULT_TRANSPORT",
        )
    for name in settings.transports:
        title = f"transport {name}"
        try:
            found = registry.available([name], settings=settings)[name]
            found = tried(name) if found.ok else found
        except BadInput as error:
            yield Check(title, "fail", error.message, error.mend or "")
            continue
        if not found.ok:
            # What is only offered because nobody chose is no fault of the machine.
            verdict: Verdict = "fail" if chosen or name == settings.default_transport else "warn"
            yield Check(title, verdict, found.reason, found.install_hint)
            continue
        keys = KEYS.get(registry.open(name).capabilities.provider_name, ())
        if keys and not any(os.environ.get(key) for key in keys):
            yield Check(title, "warn", "installed, and no key is set", f"set {keys[0]} where the worker runs")
        else:
            yield Check(title, "ok", "can be used")
