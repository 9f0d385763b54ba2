"""Whom the developer model reads along with: agents that can be told what it says, and no others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from activities_kit import FLOW, Driver, make_worker, nothing_outlives_a_test
from flow_kit import make_repository

from transports.port import Emit, SessionSpec
from transports.stub import CAPABILITIES, StubTransport
from transports.stub_session import StubSession

READ_ALONG = FLOW.replace("    outputs: [notes.md]\n", "    developer: {review_every_turns: 1}\n")
SCENARIO = """\
version: 1
steps:
  implement:
    turns:
      - work:
          - {do: say, text: I begin.}
          - {do: run, argv: ["true"]}
          - {do: run, argv: ["true"]}
          - {do: say, text: I am done.}
"""


__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


class Modelled(StubTransport):
    """A stub with a model that reads along; it counts the sessions of that."""

    def __init__(self, *, steering: bool) -> None:
        super().__init__()
        self.capabilities = dataclasses.replace(CAPABILITIES, small_model="small", steering=steering)
        self.reads = 0

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        self.reads += spec.workspace.parent.name == "developer"
        return await super().open_session(spec, emit)


@pytest.mark.parametrize("steering", [True, False])
async def test_only_who_can_be_steered_is_read_along_with(tmp_path: Path, *, steering: bool) -> None:
    transport = Modelled(steering=steering)
    worker = make_worker(tmp_path, transports={"stub": transport})
    driver = Driver(worker, make_repository(tmp_path / "repo"), READ_ALONG, SCENARIO)
    await driver.acquire()

    out = await driver.work()

    assert out.ended == "finished"
    assert (transport.reads > 0) is steering
