"""The errors of child processes.

```
StepwiseError
└── ProcessError          a child process; carries its code
    ├── GuardUnavailable  no guard can be started here, so no child is either
    ├── SpawnFailed       the program did not come to run
    ├── LineTooLong       the child printed a line over the limit
    └── StdinClosed       the child no longer reads
```
"""

from __future__ import annotations

from typing import Final, Literal

from schemas.errors import StepwiseError

SpawnCode = Literal["E_PROGRAM_NOT_FOUND", "E_NOT_EXECUTABLE", "E_BAD_CWD", "E_BAD_ARGUMENT", "E_SPAWN"]
"""Why a program did not come to run."""

SPAWN_CODES: Final[dict[str, SpawnCode]] = {
    "program_not_found": "E_PROGRAM_NOT_FOUND",
    "not_executable": "E_NOT_EXECUTABLE",
    "bad_cwd": "E_BAD_CWD",
    "bad_argument": "E_BAD_ARGUMENT",
    "spawn_failed": "E_SPAWN",
}
"""The guard's words for it."""


class ProcessError(StepwiseError):
    """Raised when a child process cannot be started, read or written; the subclass says which."""


class GuardUnavailable(ProcessError):
    """Raised at the first start of a child where no guard can run; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "E_GUARD_UNAVAILABLE",
            f"no process guard: {reason}",
            mend="children are started on Linux only",
        )
        self.reason = reason


class SpawnFailed(ProcessError):
    """Raised when a program did not come to run; nothing of it is left. A retry can help where the machine had no room."""

    def __init__(self, code: SpawnCode, argv0: str, reason: str) -> None:
        super().__init__(code, f"cannot start {argv0}: {reason}", argv0=argv0)
        self.retryable = code == "E_SPAWN"
        self.argv0 = argv0
        self.reason = reason


class LineTooLong(ProcessError):
    """Raised for a line over ``limit`` bytes; ``sample`` is how it begins."""

    def __init__(self, limit: int, sample: bytes) -> None:
        super().__init__("E_LINE_TOO_LONG", f"a line of more than {limit} bytes, it begins {sample!r}")
        self.limit = limit
        self.sample = sample


class StdinClosed(ProcessError):
    """Raised by a write to a child that closed its standard input or has ended."""

    def __init__(self, argv0: str) -> None:
        super().__init__("E_STDIN_CLOSED", f"{argv0} no longer reads its standard input", argv0=argv0)
        self.argv0 = argv0
