"""Starts a program with its keys in pipes instead of in its environment, where all that it runs could read them.

A script that imports nothing a bare interpreter has not, since every session waits for it: ``claude_launch.py PROGRAM ARGUMENT...``. Of each variable in ``PIPED`` the value
goes into a pipe, and the number of the descriptor to read it from into the other variable.
"""

from __future__ import annotations

import os
import sys

PIPED = {
    "ANTHROPIC_API_KEY": "CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR",
    "CLAUDE_CODE_OAUTH_TOKEN": "CLAUDE_CODE_OAUTH_TOKEN_FILE_DESCRIPTOR",
}
"""The variables with keys that the program also reads from a descriptor, each with the variable that names it."""


def put_away(environment: os._Environ[str] | dict[str, str]) -> None:
    """Take the keys out of an environment and leave descriptors, which the next program inherits, in their place."""
    for name, place in PIPED.items():
        key = environment.pop(name, None)
        if key is None:
            continue
        read, write = os.pipe()
        with os.fdopen(write, "wb") as pipe:
            pipe.write(key.encode())
        os.set_inheritable(read, True)
        environment[place] = str(read)


def main(argv: list[str]) -> None:
    """Become the program; raises OSError where that cannot be."""
    put_away(os.environ)
    os.execv(argv[0], argv)  # noqa: S606 - argv only, never a shell


if __name__ == "__main__":
    main(sys.argv[1:])
