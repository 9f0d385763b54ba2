"""The development server: tuned, healthy when handed over, never orphaned."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO

import psutil
import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from system.devserver import RETENTION_S, SEARCH_ATTRIBUTES, DevServer, DevServerFailed, temporal_binary

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    with DevServer.start() as started:
        yield started


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
        body: bytes = answer.read()
    return body


async def test_a_started_server_has_the_namespace_its_retention_and_pushed_cancellation(
    server: DevServer,
) -> None:
    client = await Client.connect(server.address)
    described = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace="default")
    )

    assert described.config.workflow_execution_retention_ttl.ToTimedelta() == timedelta(seconds=RETENTION_S)
    assert described.namespace_info.capabilities.worker_commands


async def test_a_started_server_knows_the_search_attributes(server: DevServer) -> None:
    client = await Client.connect(server.address)
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace="default")
    )

    assert dict(SEARCH_ATTRIBUTES).items() <= dict(known.custom_attributes).items()


def test_the_ui_and_the_http_api_answer_where_they_are_said_to(server: DevServer) -> None:
    assert server.ui_url is not None
    assert b"<html" in _get(server.ui_url)
    assert json.loads(_get(f"{server.http_url}/api/v1/namespaces"))["namespaces"]


async def test_it_can_be_started_while_a_loop_runs_and_with_another_namespace() -> None:
    with DevServer.start(
        ui=False, namespace="lab", dynamic_config={"limit.historyCount.suggestContinueAsNew": 50}
    ) as other:
        client = await Client.connect(other.address, namespace="lab")
        described = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace="lab")
        )

        assert other.ui_url is None
        assert "limit.historyCount.suggestContinueAsNew=50" in other.argv
        assert described.config.workflow_execution_retention_ttl.ToTimedelta() == timedelta(
            seconds=RETENTION_S
        )


def test_a_killed_server_comes_back_with_its_runs(tmp_path: Path) -> None:
    async def start_run(address: str) -> None:
        client = await Client.connect(address)
        await client.start_workflow("Any", id="kept", task_queue="none")

    async def status(address: str) -> str:
        client = await Client.connect(address)
        described = await client.get_workflow_handle("kept").describe()
        assert described.status is not None
        return described.status.name

    with DevServer.start(tmp_path / "runs.sqlite", ui=False) as server:
        asyncio.run(start_run(server.address))
        address, pid = server.address, server.pid

        server.kill()
        assert not server.running
        assert not psutil.pid_exists(pid)

        server.restart()
        assert (server.address, server.running) == (address, True)
        assert server.pid != pid
        assert asyncio.run(status(address)) == "RUNNING"


@pytest.mark.parametrize("service", ["history", "matching"])
def test_a_server_one_of_whose_services_does_not_answer_is_not_ready(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from system import devserver

    monkeypatch.setattr(devserver, "_READY_S", 6.0)
    # It is there, and refuses whatever it is asked; the frontend answers by itself.
    with pytest.raises(DevServerFailed, match="is not ready after 6 s") as caught:
        DevServer.start(ui=False, dynamic_config={f"{service}.rps": 0})

    assert caught.value.code == "E_DEV_SERVER"


def test_a_restart_waits_until_its_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from system import devserver

    real, begun = devserver._spawn, 0
    with DevServer.start(ui=False) as server, socket.socket() as holder:
        server.kill()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", int(server.address.rpartition(":")[2])))
        holder.listen()

        def spawn(argv: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
            nonlocal begun
            begun += 1
            if begun == 2:
                holder.close()
            return real(argv, output)

        monkeypatch.setattr(devserver, "_spawn", spawn)
        server.restart()

        assert (begun, server.running) == (2, True)


def test_the_database_is_for_one_server_alone_and_free_again_after_it(tmp_path: Path) -> None:
    db = tmp_path / "deep" / "runs.sqlite"
    with DevServer.start(db, ui=False):
        with pytest.raises(DevServerFailed) as caught:
            DevServer.start(db, ui=False)
        assert caught.value.code == "E_DEV_SERVER_DB"
        assert Path(f"{db}-wal").exists()

    with DevServer.start(db, ui=False) as again:
        assert again.running


def test_a_named_port_that_is_taken_is_refused_even_by_another_healthy_server(server: DevServer) -> None:
    port = int(server.address.rpartition(":")[2])

    with pytest.raises(DevServerFailed) as caught:
        DevServer.start(port=port, ui=False)

    assert caught.value.code == "E_DEV_SERVER_PORT"
    assert str(port) in str(caught.value)


def test_other_ports_are_tried_when_somebody_was_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    from system import devserver

    real = devserver._free_ports
    with socket.socket() as quicker:
        quicker.bind(("127.0.0.1", 0))
        quicker.listen()
        lost = [quicker.getsockname()[1]]

        def stale_first(ip: str, count: int) -> list[int]:
            return [lost.pop(), *real(ip, count - 1)] if lost else real(ip, count)

        monkeypatch.setattr(devserver, "_free_ports", stale_first)
        with DevServer.start(ui=False) as server:
            assert not lost
            assert server.running


def test_a_server_that_finds_no_port_for_itself_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from system import devserver

    panics, began = tmp_path / "temporal", tmp_path / "began"
    panics.write_text(
        f'#!/bin/sh\n[ -e {began} ] && exec {devserver.temporal_binary()} "$@"\n: > {began}\n'
        'printf "panic: failed assigning ephemeral port: none\\n\\ngoroutine 1:\\n1\\n2\\n3\\n" >&2\nexit 2\n'
    )
    panics.chmod(0o755)
    monkeypatch.setattr(devserver, "temporal_binary", lambda: panics)

    with DevServer.start(ui=False) as server:
        assert began.exists()
        assert server.running


def test_stop_may_be_called_again_and_leaves_nothing() -> None:
    server = DevServer.start(ui=False)
    pid = server.pid

    server.stop()
    server.stop()

    assert not psutil.pid_exists(pid)


def test_a_database_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    db = tmp_path / "runs.sqlite"
    db.write_bytes(b"this is no database, but long enough to look like one" * 100)

    with pytest.raises(DevServerFailed) as caught:
        DevServer.start(db, ui=False)

    assert "exit code" in str(caught.value)
    assert "--db" in str(caught.value)


def test_the_server_ends_when_the_process_that_started_it_is_killed() -> None:
    code = (
        "import sys\n"
        "from system.devserver import DevServer\n"
        "server = DevServer.start(ui=False)\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        ended = os.pidfd_open(pid)
        starter.send_signal(signal.SIGKILL)

        readable, _, _ = select.select([ended], [], [], 20)
        os.close(ended)

    assert readable


def test_the_program_is_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert temporal_binary() == Path(sys.executable).parent / "temporal"


def test_variables_of_another_server_do_not_reach_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "elsewhere")
    monkeypatch.setenv("TEMPORAL_PROFILE", "missing")
    monkeypatch.setenv("SOME_API_KEY", "s3cret")

    with DevServer.start(ui=False) as server:
        environment = psutil.Process(server.pid).environ()

    assert not {name for name in environment if name.startswith("TEMPORAL_") or "KEY" in name}


def test_ctrl_c_in_the_terminal_is_not_for_the_server() -> None:
    with DevServer.start(ui=False) as server:
        groups = {os.getpgid(server.pid), os.getpgid(server._guard.pid)}

    assert os.getpgid(0) not in groups
