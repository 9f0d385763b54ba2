"""The worker process: configuration, client, registration, graceful drain. Nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from temporalio.client import Client
from temporalio.worker import Worker

from activities import Registered, WorkerContext, build_activities, claim_data_dir, crash_point, sweep_forever
from policy.secrets import secret_values
from schemas.errors import StepwiseError
from store.blobs import open_blobs
from store.evidence import Evidence
from store.redaction import Redactor
from system import logs, processes, telemetry
from system.connection import connect
from system.settings import Loaded, load, resolved
from transports.registry import open_transports
from workflows.flow import Flow
from workflows.runner import build_runner
from workflows.unknown import UnknownType

PINNED_SLOTS = 1_000
"""Phases a worker takes at once: more than it has runs, so that waiting to start means a dead worker alone."""

_log = logs.logger("worker")


@dataclass(frozen=True)
class Engine:
    """A worker that is ready: its context and its three Temporal workers (shared, pinned, control)."""

    context: WorkerContext
    workers: tuple[Worker, Worker, Worker]


def build_engine(loaded: Loaded, client: Client, worker_id: str, env: Mapping[str, str]) -> Engine:
    """Return an engine for these settings. Raises StepwiseError for a store or a transport that cannot be used."""
    settings = resolved(loaded.settings)
    blobs = open_blobs(
        settings.store,
        fsync=settings.fsync,
        shared=settings.store_shared,
        temporal_is_loopback=loaded.is_loopback,
    )
    context = WorkerContext(
        settings=settings,
        worker_id=worker_id,
        evidence=Evidence(blobs, Redactor(secret_values(env, settings.git_credentials))),
        transports=open_transports(settings),
        client=client,
        crash_at=crash_point(settings.crash_at),
    )
    return Engine(context, _workers(context, client, build_activities(context)))


def _workers(context: WorkerContext, client: Client, registered: Registered) -> tuple[Worker, Worker, Worker]:
    settings = context.settings
    drain = timedelta(seconds=settings.drain_s)
    throttle = timedelta(seconds=settings.heartbeat_every_s)
    made = partial(
        Worker,
        client,
        identity=f"{context.worker_id}@{context.host}",
        max_heartbeat_throttle_interval=throttle,
        default_heartbeat_throttle_interval=throttle,
    )
    shared = made(
        task_queue=settings.task_queue,
        workflows=[Flow, UnknownType],
        activities=registered.shared,
        workflow_runner=build_runner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_s),
        graceful_shutdown_timeout=drain,
    )
    pinned = made(
        task_queue=context.queue,
        activities=registered.pinned,
        max_concurrent_activities=PINNED_SLOTS,
        # Cut running agents at once when told to stop: they save and hand off within the drain time.
        graceful_shutdown_timeout=timedelta(),
    )
    control = made(
        task_queue=context.control_queue,
        activities=registered.control,
        graceful_shutdown_timeout=drain,
    )
    return shared, pinned, control


@contextlib.asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Serve while the block runs; leave it to drain: phases end or hand off, then everything started ends.

    The block gets the tasks that serve; one that ends by itself has failed.
    """
    context = engine.context
    _collect_less_often()
    sweeping = asyncio.create_task(sweep_forever(context))
    serving = [asyncio.create_task(one.run()) for one in engine.workers]
    try:
        yield serving
    finally:
        # All at once: the shared worker waits for its last tasks while the pinned one tells its agents to stop.
        await asyncio.gather(*(one.shutdown() for one in engine.workers))
        ended = await asyncio.gather(*serving, return_exceptions=True)
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await context.sessions.close_all()
        await processes.shutdown()
    for error in ended:
        if isinstance(error, BaseException):
            raise error


def _collect_less_often() -> None:
    """Look for cyclic garbage less often, and never again among what was loaded at the start.

    Payloads and models are short-lived and hold no cycles; with the default thresholds a third of the process's time
    went into looking for some.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def serve(loaded: Loaded, env: Mapping[str, str]) -> None:
    """Run a worker until SIGTERM or SIGINT, then drain. Raises StepwiseError when it cannot start."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    identity = claim_data_dir(resolved(loaded.settings).data_dir)
    client = await connect(loaded, plugins=telemetry.plugins(env), runtime=logs.core_runtime())
    engine = build_engine(loaded, client, identity.worker_id, env)
    async with running(engine) as serving:
        _log.info(
            "worker %s serves %s at %s",
            identity.worker_id,
            engine.context.settings.task_queue,
            loaded.address,
        )
        told = asyncio.create_task(stop.wait())
        await asyncio.wait({told, *serving}, return_when=asyncio.FIRST_COMPLETED)
        _log.info("worker %s drains", identity.worker_id)
    identity.release()


def main() -> int:
    """Run the worker of this process's environment; 0 after a clean drain, 2 when it cannot start."""
    processes.keep_to_itself()
    try:
        loaded = load(os.environ)
        redactor = Redactor(secret_values(os.environ, loaded.settings.git_credentials))
        logs.set_up(level=loaded.settings.log_level, form=loaded.settings.log_format, redact=redactor.text)
        asyncio.run(serve(loaded, os.environ))
    except StepwiseError as error:
        sys.stderr.write(f"stepwise worker: {error.code}: {error}\n")
        return 2
    telemetry.flush()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A plain exit aborts now and then while the SDK's threads end.
    os._exit(code)
