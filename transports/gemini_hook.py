"""The hook that Gemini CLI starts before each tool call: asks the gate, and denies whenever it does not know.

Started alone, by a bare interpreter: it may import nothing but the standard library. The program lets a call pass
when a hook fails in any way but this one: exit code 2 with a reason on stderr.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

DENY = 2
"""Exit code with which a call is denied."""
WORD = b"allow\n"
"""What the gate says, before it hangs up, of a call that may be made."""
GONE = "policy_unavailable: nobody answered for the policy"
"""The reason when there is no gate to ask."""


def ask(gate: Path, call: bytes) -> bytes:
    """Return the gate's words about a call. Raises OSError when nobody answers."""
    os.chdir(gate.parent)  # the path of a socket may have 107 bytes, a name alone has fewer
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(gate.name)
        channel.sendall(call)
        channel.shutdown(socket.SHUT_WR)
        parts = iter(lambda: channel.recv(65_536), b"")
        return b"".join(parts)


def main() -> int:
    """Ask about the call on stdin; 0 lets it pass, anything else denies it."""
    try:
        said = ask(Path(sys.argv[1]), sys.stdin.buffer.read())
    except (OSError, IndexError):
        said = b""
    if said == WORD:
        return 0
    sys.stderr.write(said.decode("utf-8", "replace").strip() or GONE)
    return DENY


if __name__ == "__main__":
    sys.exit(main())
