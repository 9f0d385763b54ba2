"""Arguments and options that several commands have, said once."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of lines for people.")]
"""Whether a program reads the result."""
RunName = Annotated[
    str,
    typer.Argument(
        help="A run id, a workflow id (its newest run is meant), or the beginning of one.", metavar="RUN"
    ),
]
"""Which run: what ``cli.history.find`` takes."""
StoreUrl = Annotated[
    str, typer.Option("--store", help="The evidence store; the worker's if it is not given.", metavar="URL")
]
"""Which evidence store; empty: the worker's."""
