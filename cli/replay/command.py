"""The command: what is named is judged one by one, shown, and summed up in an exit code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from cli.flows import read_own_flow
from cli.options import AsJson
from cli.replay.compared import Compared
from cli.replay.facts import read_facts
from cli.replay.offline import replay_history
from cli.replay.replayed import Replayed
from cli.replay.rows import BAD_INPUT, LeftOut, Row, as_data, exit_code, summary
from cli.replay.sources import TRY_QUERY, Chain, Wanted, find
from cli.replay.what_if import compare
from cli.session import say, say_json
from schemas.errors import BadInput
from schemas.flow import FlowSpec


def replay(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="A file from: temporal workflow show -w ID -o json > history.json; a folder of such files; "
            "or the id of a workflow on the server.",
            metavar="HISTORY...",
        ),
    ] = None,
    *,
    run_id: Annotated[
        str,
        typer.Option(help="Which execution of the workflow; the newest if it is not given.", metavar="ID"),
    ] = "",
    from_server: Annotated[
        str | None,
        typer.Option(
            help="Replay each workflow of the server that a visibility query matches.", metavar="QUERY"
        ),
    ] = None,
    what_if: Annotated[
        Path | None,
        typer.Option(
            help="Decide the recorded facts again under this flow file, and print the decisions that differ.",
            metavar="FLOW.yaml",
        ),
    ] = None,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Run workflow code where breakpoint() works: no sandbox, no time limit."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay histories offline: print each routing decision with its inputs and reason.

    Of a workflow that continued as new every execution is replayed. Of several histories each is shown in a line.

    Exit code 0: the code does what the histories say. 1: it does not; the first divergence is printed. 2: what is
    named is no history. 3: the workflow's code failed in another way. With --what-if, 0: no decision differs. 1: some
    do. 2: the flow file has faults, or there is no history of this flow.
    """
    wanted = Wanted(names or [], run_id, from_server)
    wanted.check()
    if what_if is None:
        work = _each(wanted, "replay", partial(_replayed, debug=debug), as_json=as_json)
    else:
        work = _what_if(wanted, what_if, debug=debug, as_json=as_json)
    with _left_by_ctrl_c() if debug else nullcontext():
        code = asyncio.run(work)
    raise typer.Exit(code)


@contextmanager
def _left_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process: the debugger would only ask again, and its ``q`` goes on."""

    def end(number: int, _frame: FrameType | None) -> None:
        # By the signal itself, so that the shell puts the terminal right.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _each(wanted: Wanted, word: str, judge: Callable[[Chain], Awaitable[Row]], *, as_json: bool) -> int:
    """Judge what is wanted, one after another, say how each came out, and return the exit code."""
    rows: list[Row] = []
    async for found in find(wanted):
        row = found if isinstance(found, LeftOut) else await judge(found)
        rows.append(row)
        if wanted.is_one and isinstance(row, LeftOut):
            row.refuse()
        if not as_json:
            say(row.whole() if wanted.is_one else f"{row.verdict:<9} {row.line()}".replace("\n", " "))
    if not rows:
        raise BadInput("E_QUERY", f"no workflow matches {wanted.query!r}", mend=TRY_QUERY)
    if as_json:
        say_json(as_data(rows, is_one=wanted.is_one))
    elif not wanted.is_one:
        say(f"\n{word}: {summary(rows)}")
    return exit_code(rows)


async def _what_if(wanted: Wanted, path: Path, *, debug: bool, as_json: bool) -> int:
    own = read_own_flow(path)
    if own.spec is None:
        for finding in own.findings:
            say(str(finding))
        return BAD_INPUT
    judge = partial(_compared, path, own.spec, debug=debug)
    return await _each(wanted, "what-if", judge, as_json=as_json)


async def _replayed(chain: Chain, *, debug: bool) -> Row:
    return Replayed(chain.label, [await replay_history(one.history, debug=debug) for one in chain.executions])


async def _compared(path: Path, spec: FlowSpec, chain: Chain, *, debug: bool) -> Row:
    """Decide one run again; what keeps it from being compared is said instead."""
    label = chain.label
    reports = [await replay_history(one.history, debug=debug) for one in chain.executions]
    if any(report.failure is not None for report in reports):
        mend = "`stepwise replay` shows the first event that differs"
        return LeftOut(label, "bad", f"{label} does not replay, so what it decided is not known", mend)
    try:
        recorded = [read_facts(one.history) for one in chain.executions]
    except (RuntimeError, ValueError) as error:
        return LeftOut(label, "bad", f"{label}: {error}")
    heard = [report.heard for report in reports]
    try:
        comparison = compare(spec, list(zip(recorded, heard, strict=True)))
    except BadInput as error:
        return LeftOut(label, "bad", f"{label}: {error.message}", error.mend)
    if comparison is None:
        flows = list(dict.fromkeys(facts.spec.id for facts in recorded if facts.spec is not None))
        ran = f"{label} ran {' and '.join(flows)}" if flows else f"in {label} no flow was resolved"
        mend = f"give a changed file of that flow, or histories of {spec.id}"
        return LeftOut(label, "skipped", f"{ran}, not {spec.id}", mend)
    return Compared(label, str(path), comparison)
