"""Checks what a machine without a container engine can check of this folder: syntax, names, agreement with the code."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from schemas.settings import WorkerSettings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
INSTRUCTIONS = {
    "FROM", "RUN", "COPY", "WORKDIR", "USER", "ENV", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD", "ARG", "LABEL", "EXPOSE",
}  # fmt: skip


def settings_known(text: str, where: str) -> list[str]:
    """Return a fault for each STEPWISE_ variable that is no setting of the worker."""
    known = {f"STEPWISE_{name.upper()}" for name in WorkerSettings.model_fields}
    used = set(re.findall(r"\b(STEPWISE_[A-Z_]+)\b", text)) - {"STEPWISE_REPOSITORIES"}
    return [f"{where}: {name} is no setting" for name in sorted(used - known)]


def dockerfile_faults() -> list[str]:
    """Return what is wrong with the Dockerfile."""
    text = (HERE / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    faults = settings_known(text, "Dockerfile")
    for line in filter(None, (line.strip() for line in joined.splitlines())):
        word = line.split()[0]
        if word not in INSTRUCTIONS:
            faults.append(f"Dockerfile: unknown instruction {word}")
        if word == "COPY" and not any((ROOT / source).exists() for source in line.split()[1:-1]):
            faults.append(f"Dockerfile: {line}: nothing to copy")
    if (
        'ENTRYPOINT ["tini", "-g", "--", "python", "worker.py"]' not in text
        or not (ROOT / "worker.py").is_file()
    ):
        faults.append("Dockerfile: the entry point is not worker.py")
    return faults


def _yaml(path: Path) -> dict[str, Any]:
    loaded = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    if not isinstance(loaded, dict):
        message = f"{path.name} is no mapping"
        raise TypeError(message)
    return loaded


def compose_faults() -> list[str]:
    """Return what is wrong with the compose file."""
    compose = _yaml(HERE / "compose.yaml")
    services, volumes = compose["services"], compose["volumes"]
    faults = settings_known((HERE / "compose.yaml").read_text(encoding="utf-8"), "compose.yaml")
    for name, service in services.items():
        if ("image" in service) == ("build" in service):
            faults.append(f"compose.yaml: {name} needs an image or a build")
        faults += [
            f"compose.yaml: {name} depends on {other}, which is no service"
            for other in service.get("depends_on", {})
            if other not in services
        ]
        for mount in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", mount).split(":")[0]
            if source.startswith("."):
                if not (HERE / source).exists():
                    faults.append(f"compose.yaml: {name} mounts {source}, which is not there")
            elif source not in volumes:
                faults.append(f"compose.yaml: {name} mounts {source}, which is no volume")
    if not (
        HERE / services["worker"]["build"]["context"] / services["worker"]["build"]["dockerfile"]
    ).is_file():
        faults.append("compose.yaml: the worker's Dockerfile is not there")
    _yaml(HERE / "dynamicconfig.yaml")
    return faults


def unit_faults() -> list[str]:
    """Return what is wrong with the systemd unit; systemd-analyze looks too where it is installed."""
    path = HERE / "stepwise-worker.service"
    text = path.read_text(encoding="utf-8")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # systemd's keys keep their case
    unit.read_string(text)
    faults = settings_known(text, path.name)
    if not unit["Service"]["ExecStart"].endswith("/.venv/bin/python worker.py"):
        faults.append(f"{path.name}: ExecStart does not start worker.py")
    drain = WorkerSettings.model_fields["drain_s"].default
    if int(unit["Service"]["TimeoutStopSec"]) <= drain:
        faults.append(f"{path.name}: TimeoutStopSec must be longer than the drain of {drain:g} s")
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_text(
                re.sub(r"/opt/stepwise/\.venv/bin/python", sys.executable, text), encoding="utf-8"
            )
            done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, check=False)
            faults += [
                f"{path.name}: {line}"
                for line in done.stderr.splitlines()
                if path.name in line and "Command" not in line
            ]
    return faults


def main() -> int:
    """Print every fault; exit code 1 if there is one."""
    faults = dockerfile_faults() + compose_faults() + unit_faults()
    for fault in faults:
        sys.stderr.write(f"deploy: {fault}\n")
    if not faults:
        sys.stdout.write("deploy: ok\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
