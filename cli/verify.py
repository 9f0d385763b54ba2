"""``stepwise verify``: hashes a run's receipts and every file they name."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Annotated, Final

import typer

from cli.history_store import open_here
from cli.session import say
from schemas.errors import BadInput
from store.blobs import check_key
from store.receipts import Receipts, Report

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def verify(
    run: Annotated[str, typer.Argument(help="Run id, as `stepwise start` prints it.", metavar="RUN")],
    *,
    store: Annotated[
        str, typer.Option(help="The evidence store; the worker's if it is not given.", metavar="URL")
    ] = "",
    head: Annotated[
        str,
        typer.Option(
            help="Digest the chain must end with: receipts_head of the run's result.", metavar="SHA"
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Check a run's evidence; exit code 1 if anything is wrong.

    Receipts must form one chain, and every file they name must be there with the digest they say. This detects
    corruption. A forger can write a new chain: only --head, taken from the run's history, shows that.
    """
    if head and not _DIGEST.fullmatch(head):
        raise BadInput("E_HEAD", f"--head {head!r} is no digest", mend="give 64 characters of 0-9 and a-f")
    check_key(f"runs/{run}")
    report = Receipts(open_here(store).evidence).verify_run(run, head or None)
    if as_json:
        say(json.dumps(asdict(report), indent=2))
    else:
        _show(report, checked_head=bool(head))
    if not report.ok:
        raise typer.Exit(1)


def _show(report: Report, *, checked_head: bool) -> None:
    for problem in report.problems:
        say(f"{problem.path}: {problem.what}")
    for path in report.pruned:
        say(f"{path}: pruned{f' on {report.pruned_on}' if report.pruned_on else ' by retention'}")
    count = len(report.receipts)
    if not report.ok:
        say(
            f"NOT OK: {len(report.problems)} problem{'' if len(report.problems) == 1 else 's'}, {count} receipts in the chain"
        )
    elif checked_head:
        say(f"ok: {count} receipts in one chain that ends with the head, every file they name is unaltered")
    else:
        say(
            f"ok: {count} receipts in one chain, every file they name is unaltered (its end was not checked: --head)"
        )
