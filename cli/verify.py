"""``stepwise verify``: hashes a run's receipts and every file they name."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Final

import typer

from cli.here import open_here
from cli.history.find import find
from cli.options import AsJson, RunName, StoreUrl
from cli.session import say, say_json
from cli.words import many
from schemas.errors import BadInput
from store.evidence import Evidence
from store.receipts import Receipts, Report

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def verify(
    run: RunName,
    *,
    store: StoreUrl = "",
    head: Annotated[
        str,
        typer.Option(
            help="Digest the chain must end with: receipts_head of the run's result.", metavar="SHA"
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Check a run's evidence; exit code 1 if anything is wrong.

    Receipts must form one chain, and every file they name must be there with the digest they say. This detects
    corruption. A forger can write a new chain: only --head, taken from the run's history, shows that.
    """
    if head and not _DIGEST.fullmatch(head):
        raise BadInput("E_HEAD", f"--head {head!r} is no digest", mend="give 64 characters of 0-9 and a-f")
    evidence = open_here(store).evidence
    report = Receipts(evidence).verify_run(_run_id(evidence, run), head or None)
    if as_json:
        say_json(asdict(report))
    else:
        _show(report, checked_head=bool(head))
    if not report.ok:
        raise typer.Exit(1)


def _run_id(evidence: Evidence, word: str) -> str:
    """Return which run is meant; one whose record is lost can still be named by its whole id. Raises BadInput E_RUN."""
    return word if word in evidence.blobs.folders("runs/") else find(word, evidence).run_id


def _show(report: Report, *, checked_head: bool) -> None:
    for problem in report.problems:
        say(f"{problem.path}: {problem.what}")
    for path in report.pruned:
        say(f"{path}: pruned{f' on {report.pruned_on}' if report.pruned_on else ' by retention'}")
    count = many(len(report.receipts), "receipt")
    if not report.ok:
        say(f"NOT OK: {many(len(report.problems), 'problem')}, {count} in the chain")
    elif checked_head:
        say(f"ok: {count} in one chain that ends with the head, every file they name is unaltered")
    else:
        say(f"ok: {count} in one chain, every file they name is unaltered (its end was not checked: --head)")
