"""What is said where no server answers: where the address comes from, and the client's words if they help."""

from __future__ import annotations

import asyncio
import os

import pytest

from schemas.errors import StepwiseError
from system import connection
from system.connection import connect
from system.settings import load


def env(port: int) -> dict[str, str]:
    address = f"127.0.0.1:{port}"
    return {"TEMPORAL_ADDRESS": address, "TEMPORAL_CONFIG_FILE": os.devnull, "STEPWISE_CONFIG": ""}


async def refusal(port: int) -> str:
    with pytest.raises(StepwiseError) as refused:
        await connect(load(env(port)))
    assert refused.value.code == "E_SERVER"
    return refused.value.message


async def test_a_refused_connection_needs_no_more_words() -> None:
    said = "no Temporal server answers at 127.0.0.1:1 (address: environment TEMPORAL_ADDRESS)"
    assert await refusal(1) == said


async def test_of_a_server_that_is_no_temporal_server_the_clients_words_are_told() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        said = await refusal(server.sockets[0].getsockname()[1])
    assert "(address: environment TEMPORAL_ADDRESS): Failed client connect: " in said


async def test_a_server_that_says_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    monkeypatch.setattr(connection, "CONNECT_S", 0.2)
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        said = await refusal(server.sockets[0].getsockname()[1])
        silent.set()
    assert said.endswith(": nothing within 0.2 s")
