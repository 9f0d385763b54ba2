"""The ``stepwise`` command: its sub-commands, and how errors reach people."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Final, NoReturn

import typer

USAGE: Final = 2
"""Exit code of every error; 1 means that a check found something, 0 that all is well."""
INTERRUPTED: Final = 130
TRACEBACK_VARIABLE: Final = "STEPWISE_LOG_LEVEL"

COMMANDS: Final = {
    "dev": ("cli.dev", "Run a Temporal server and a worker here until Ctrl-C."),
    "start": ("cli.start", "Check a flow and its input, then start a run of it."),
    "fork": ("cli.fork", "Start a new run from where another one stood before a step."),
    "lint": ("cli.flows", "Check flow files; exit code 1 if there is anything to mend."),
    "plan": ("cli.flows", "Show a flow's steps, its gates, and every way between them."),
    "runs": ("cli.runs", "List runs, newest first: how they ended, or what they do or wait for."),
    "show": ("cli.show", "Show a run from its evidence: the timeline, the gates, what each step took."),
    "tail": (
        "cli.tail",
        "Print a run's events as they come: the journal, and what its agent does. Ends with the run.",
    ),
    "verify": ("cli.verify", "Check a run's evidence; exit code 1 if anything is wrong."),
    "prune": (
        "cli.prune",
        "Remove evidence and clones of ended runs, oldest first, until every rule that is given holds.",
    ),
    "replay": (
        "cli.replay",
        "Replay histories offline: print each routing decision with its inputs and reason.",
    ),
    "config": ("cli.config", "Show every setting: its value, where it comes from, what it means."),
    "doctor": ("cli.doctor", "Check what runs need; exit code 1 if they cannot work."),
    "mcp": (
        "cli.mcp",
        "Offer a workspace's files and commands to an agent, on standard input and output, under our policy.",
    ),
}
"""The commands: the module with the function of that name, and the first paragraph of what that function says of itself.

Most of a command's time is the import of what it needs, so only the module of the one that is meant is imported.
"""


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Return the program with the command that is meant; of the others it has names and summaries."""
    app = typer.Typer(
        name="stepwise",
        help="Run AI coding agents through durable, evidence-gated flows on Temporal.\n\n"
        "Runs are started, watched and steered with the Temporal CLI and UI; this command does what they cannot.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        callback=_root,
    )
    meant = next((argument for argument in arguments if argument in COMMANDS), None)
    for name, (module, summary) in COMMANDS.items():
        if name == meant:
            app.command(name)(getattr(import_module(module), name))
        else:
            app.command(name, help=summary)(_root)
    return app


def _root() -> None:
    """Do nothing: the work is in the commands."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one line on stderr."""
    try:
        result = typer.main.get_command(_app(arguments)).main(
            list(arguments) or ["--help"], prog_name="stepwise", standalone_mode=False
        )
        sys.stdout.flush()
    except typer.TyperException as error:
        return _failed(" ".join(error.format_message().split()), "add --help to see what can be said")
    except BrokenPipeError:
        # Whoever read our output has enough; without this Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as ended:
        # Typer ends so where nobody reads any more; a plain exit may abort in the SDK's threads.
        return ended.code if isinstance(ended.code, int) else 1
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - people get a line, whatever it was
        return _failed(*_told(error))
    return result if isinstance(result, int) else 0


def _told(error: Exception) -> tuple[str, str | None]:
    """Return what people are told of an error, and the mend."""
    from schemas.errors import StepwiseError  # noqa: PLC0415 - slow, and needed for errors only

    if isinstance(error, StepwiseError):
        return error.message, error.mend
    if os.environ.get(TRACEBACK_VARIABLE) == "DEBUG":
        traceback.print_exception(error)
    first = (str(error).splitlines() or [""])[0]
    return (
        f"this should not happen: {type(error).__name__}: {first}",
        f"{TRACEBACK_VARIABLE}=DEBUG shows where",
    )


def _failed(message: str, mend: str | None) -> int:
    from cli.session import complain  # noqa: PLC0415 - slow, and needed for errors only

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
