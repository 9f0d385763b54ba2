"""The ``stepwise`` command: its sub-commands, and how errors reach people."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Final, NoReturn

import typer

from cli import config, dev, doctor, flows, fork, mcp, prune, replay, runs, show, start, tail, verify
from cli.session import complain
from schemas.errors import StepwiseError

USAGE: Final = 2
"""Exit code of every error; 1 means that a check found something, 0 that all is well."""
INTERRUPTED: Final = 130
TRACEBACK_VARIABLE: Final = "STEPWISE_LOG_LEVEL"

app = typer.Typer(
    name="stepwise",
    help="Run AI coding agents through durable, evidence-gated flows on Temporal.\n\n"
    "Runs are started, watched and steered with the Temporal CLI and UI; this command does what they cannot.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("dev")(dev.dev)
app.command("start")(start.start)
app.command("fork")(fork.fork)
app.command("lint")(flows.lint)
app.command("plan")(flows.plan)
app.command("runs")(runs.runs)
app.command("show")(show.show)
app.command("tail")(tail.tail)
app.command("verify")(verify.verify)
app.command("prune")(prune.prune)
app.command("replay")(replay.replay)
app.command("config")(config.config)
app.command("doctor")(doctor.doctor)
app.command("mcp")(mcp.mcp)


@app.callback()
def _root() -> None:
    """Make sub-commands of all, whatever their number."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one line on stderr."""
    try:
        result = typer.main.get_command(app).main(
            list(arguments) or ["--help"], prog_name="stepwise", standalone_mode=False
        )
        sys.stdout.flush()
    except StepwiseError as error:
        return _failed(error.message, error.mend)
    except typer.TyperException as error:
        return _failed(" ".join(error.format_message().split()), "add --help to see what can be said")
    except BrokenPipeError:
        # Whoever read our output has enough; without this Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - people get a line, whatever it was
        if os.environ.get(TRACEBACK_VARIABLE) == "DEBUG":
            traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        return _failed(
            f"this should not happen: {type(error).__name__}: {first}",
            f"{TRACEBACK_VARIABLE}=DEBUG shows where",
        )
    return result if isinstance(result, int) else 0


def _failed(message: str, mend: str | None) -> int:
    complain(f"stepwise: {message}{f' -> {mend}' if mend else ''}")
    return USAGE


def main() -> NoReturn:
    """Run the command of this process's arguments and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # What agents and people wrote may hold halves of characters, or what this terminal cannot show.
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # A plain exit aborts now and then while the threads of the Temporal client end.
    os._exit(code)


if __name__ == "__main__":
    main()
