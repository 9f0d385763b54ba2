"""``stepwise replay``: a history run again offline; every decision with its inputs, or the first divergence."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer

from cli.session import say
from schemas.converter import build_data_converter
from schemas.errors import BadInput
from workflows.flow import Flow
from workflows.log import DECISION, logger
from workflows.runner import build_runner
from workflows.unknown import UnknownType

NON_DETERMINISM: Final = 1
OTHER_FAILURE: Final = 3
_MAKE: Final = (
    "make one with: temporal workflow show -w ID -o json > history.json (in the UI: Download, Encoded)"
)
_CORE_MESSAGE: Final = re.compile(r'message: "(\[TMPRL\d+\] )?(.*?)", source:', re.DOTALL)


@dataclass(frozen=True)
class Divergence:
    """Where a replay first differs: the event's number, what the history has there, what the code did."""

    event: int
    expected: str
    got: str


@dataclass
class Report:
    """What a replay showed."""

    workflow_id: str
    events: int
    decisions: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None
    non_deterministic: bool = False
    divergence: Divergence | None = None

    @property
    def exit_code(self) -> int:
        """0 for a clean replay, 1 for a non-determinism, 3 for any other failure of the workflow's code."""
        if self.failure is None:
            return 0
        return NON_DETERMINISM if self.non_deterministic else OTHER_FAILURE


def replay(
    history: Annotated[
        Path, typer.Argument(help="File from: temporal workflow show -w ID -o json > history.json")
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay a history offline: print each routing decision with its inputs and reason.

    Exit code 0: the code does what the history says. 1: it does not; the first divergence is printed. 2: the file
    is no history. 3: the workflow's code failed in another way.
    """
    report = asyncio.run(replay_history(load_history(history)))
    if as_json:
        typer.echo(json.dumps(_as_data(report), indent=2, ensure_ascii=False))
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def load_history(path: Path) -> WorkflowHistory:
    """Return the history in the file. Raises BadInput."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("E_HISTORY", f"{path}: {error}", mend="name a readable file") from None
    try:
        loaded = WorkflowHistory.from_json(_workflow_id(text) or path.stem, text)
    except Exception as error:  # noqa: BLE001 - the parser's errors have no common type
        raise BadInput("E_HISTORY", f"{path} is no workflow history: {error}", mend=_MAKE) from None
    if not loaded.events:
        raise BadInput("E_HISTORY", f"{path} holds no events", mend="was the output cut?")
    if not loaded.events[0].HasField("workflow_execution_started_event_attributes"):
        # a replay would wait for it for ever
        raise BadInput("E_HISTORY", f"{path} does not begin with the start of a workflow", mend=_MAKE)
    return loaded


async def replay_history(history: WorkflowHistory) -> Report:
    """Replay one history and report its decisions and, if the code diverges, where first."""
    report = Report(history.workflow_id, len(history.events))
    with _listening(report.decisions):
        failure = await _replay(history)
    if failure is not None:
        report.failure = str(failure)
        report.non_deterministic = isinstance(failure, workflow.NondeterminismError)
    if report.non_deterministic:
        report.divergence = await _first_divergence(history, str(failure))
    return report


@cache
def _silent_runtime() -> Runtime:
    """Return a runtime whose core does not log: it would do so on stdout, and the report says it better."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


async def _replay(history: WorkflowHistory) -> Exception | None:
    replayer = Replayer(
        workflows=[Flow, UnknownType],
        data_converter=build_data_converter(),
        workflow_runner=build_runner(replay=True),
        runtime=_silent_runtime(),
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return result.replay_failure


async def _first_divergence(history: WorkflowHistory, message: str) -> Divergence:
    """Find the shortest beginning of the history that already diverges, by halving."""
    good, bad = 0, len(history.events)
    while bad - good > 1:
        middle = (good + bad) // 2
        prefix = WorkflowHistory(history.workflow_id, history.events[:middle])
        failure = await _replay(prefix)
        if isinstance(failure, workflow.NondeterminismError):
            bad, message = middle, str(failure)
        else:
            good = middle
    event = history.events[bad - 1]
    return Divergence(event=event.event_id, expected=describe_event(event), got=_words(message))


def _words(message: str) -> str:
    """Return what the SDK's core says, without the wrapping it comes in."""
    found = _CORE_MESSAGE.search(message)
    return found.group(2).removeprefix("Nondeterminism error: ") if found else message


def describe_event(event: Any) -> str:
    """Return an event in a few words: its type and, where it has them, the activity's id and type."""
    name = str(
        event.DESCRIPTOR.fields_by_name["event_type"].enum_type.values_by_number[event.event_type].name
    )
    words = [name.removeprefix("EVENT_TYPE_")]
    if event.HasField("activity_task_scheduled_event_attributes"):
        scheduled = event.activity_task_scheduled_event_attributes
        words.append(f"{scheduled.activity_type.name} ({scheduled.activity_id})")
    if event.HasField("timer_started_event_attributes"):
        words.append(f"timer {event.timer_started_event_attributes.timer_id}")
    if event.HasField("marker_recorded_event_attributes"):
        words.append(f"marker {event.marker_recorded_event_attributes.marker_name}")
    return " ".join(words)


class _Listener(logging.Handler):
    def __init__(self, decisions: list[dict[str, Any]]) -> None:
        super().__init__(logging.DEBUG)
        self._decisions = decisions

    def emit(self, record: logging.LogRecord) -> None:
        decision = record.__dict__.get("decision")
        if record.getMessage().startswith(DECISION) and isinstance(decision, dict):
            self._decisions.append(decision)


class _listening:  # noqa: N801 - used as a statement
    """Lets the workflow's log speak during replay, to us alone."""

    def __init__(self, decisions: list[dict[str, Any]]) -> None:
        self._handler = _Listener(decisions)
        self._target = logger.logger

    def __enter__(self) -> None:
        self._before = (self._target.level, self._target.propagate, logger.log_during_replay)
        self._target.addHandler(self._handler)
        self._target.setLevel(logging.DEBUG)
        self._target.propagate = False
        logger.log_during_replay = True

    def __exit__(self, *_: object) -> None:
        self._target.removeHandler(self._handler)
        self._target.level, self._target.propagate, logger.log_during_replay = self._before


def _workflow_id(text: str) -> str | None:
    try:
        first = json.loads(text)["events"][0]
        return str(first["workflowExecutionStartedEventAttributes"]["workflowId"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def _as_data(report: Report) -> dict[str, Any]:
    divergence = report.divergence
    return {
        "workflow_id": report.workflow_id,
        "events": report.events,
        "decisions": report.decisions,
        "failure": report.failure,
        "non_deterministic": report.non_deterministic,
        "divergence": vars(divergence) if divergence else None,
    }


def _print(report: Report) -> None:
    say(f"workflow {report.workflow_id}: {report.events} events, {len(report.decisions)} routing decisions")
    for number, decision in enumerate(report.decisions, 1):
        outcome, facts = decision["outcome"], decision["facts"]
        target = f" {outcome['next_step_id']}" if outcome.get("next_step_id") else ""
        say(
            f"\n{number}. {decision['step']} #{decision['visit']} (event {decision['event']})"
            f": {outcome['decision']}{target}"
        )
        say(f"   why     {outcome.get('explanation') or outcome.get('reason', '')}")
        say(
            f"   source  {outcome.get('source', 'deterministic')}"
            + (f", exit {outcome['exit']}" if outcome.get("exit") else "")
        )
        say(f"   facts   {json.dumps(facts, ensure_ascii=False, sort_keys=True)}")
        say(f"   loops   {json.dumps(decision['loops'], sort_keys=True)}")
    if report.divergence is not None:
        say("\nNon-determinism: the code does not do what the history says.")
        say(f"   event     {report.divergence.event}")
        say(f"   expected  {report.divergence.expected}")
        say(f"   got       {report.divergence.got}")
    elif report.failure is not None:
        say(f"\nThe workflow's code failed: {report.failure}")
    else:
        say("\nreplay: ok")
