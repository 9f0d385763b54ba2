"""The end of a process is waited for, not looked for."""

from __future__ import annotations

import asyncio
import subprocess

from looking import ends


def reader() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE)


async def test_many_may_wait_for_the_end_of_a_process_and_one_may_stop_to() -> None:
    with reader() as process:
        waiting = [asyncio.create_task(ends(process)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert process.stdin is not None
        process.stdin.close()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == [3, 3]
        assert await ends(process) == 3
