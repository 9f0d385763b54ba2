"""What ``stepwise doctor`` asks the Temporal server, and what it can mend there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.namespace.v1 import NamespaceInfo
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from cli.checks import Check
from cli.session import temporal_command
from policy.plain import typed
from schemas.errors import StepwiseError
from system.connection import connect
from system.devserver import SEARCH_ATTRIBUTES, TYPE_NAMES
from system.settings import Loaded

RETENTION: Final = timedelta(days=7)
"""A namespace that keeps closed runs for a shorter time gets a warning."""
POLLED_WITHIN: Final = timedelta(minutes=2)
"""A worker whose last poll is older is taken for gone (a poll lasts up to a minute)."""
MAX_STUCK: Final = 20
"""How many stuck runs are named."""

_CLOUD: Final = ".tmprl.cloud"
_STUCK: Final = (
    'ExecutionStatus = "Running" AND TemporalReportedProblems IN '
    '("category=WorkflowTaskFailed", "category=WorkflowTaskTimedOut")'
)


async def server_checks(loaded: Loaded, *, fix: bool) -> AsyncIterator[Check]:
    """Ask the server; with ``fix``, missing search attributes are registered. Ends early where it must."""
    try:
        client = await connect(loaded)
    except StepwiseError as error:
        yield Check("server", "fail", error.message, error.mend or "")
        return
    yield Check("server", "ok", loaded.address)
    try:
        described = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=loaded.namespace)
        )
    except RPCError as error:
        yield _no_namespace(loaded, error)
        return
    kept = described.config.workflow_execution_retention_ttl.ToTimedelta()
    yield _namespace(loaded, kept)
    yield _updates(described.namespace_info)
    yield _commands(loaded, described.namespace_info)
    yield await _search_attributes(client, loaded, fix=fix)
    yield await _worker(client, loaded)
    yield await _stuck(client, loaded)


def _is_cloud(loaded: Loaded) -> bool:
    return loaded.address.rpartition(":")[0].endswith(_CLOUD)


def _no_namespace(loaded: Loaded, error: RPCError) -> Check:
    if error.status is not RPCStatusCode.NOT_FOUND:
        mend = "look at the server, and at TEMPORAL_API_KEY and the TLS settings"
        return Check("namespace", "fail", f"{loaded.namespace}: {error.message}", mend)
    if _is_cloud(loaded):
        mend = typed(["tcld", "namespace", "get", "--namespace", loaded.namespace])
    else:
        mend = temporal_command(loaded, "operator", "namespace", "create", "--retention", "720h")
    return Check("namespace", "fail", f"there is no namespace {loaded.namespace}", mend)


def _namespace(loaded: Loaded, kept: timedelta) -> Check:
    if kept >= RETENTION:
        return Check("namespace", "ok", f"{loaded.namespace}, keeps closed runs {kept.days} days")
    if _is_cloud(loaded):
        words = ["tcld", "namespace", "retention", "set", "--namespace", loaded.namespace]
        mend = typed([*words, "--retention-days", "30"])
    else:
        mend = temporal_command(loaded, "operator", "namespace", "update", "--retention", "720h")
    hours = int(kept.total_seconds() // 3600)
    return Check("namespace", "warn", f"{loaded.namespace} keeps closed runs {hours} h only", mend)


def _updates(info: NamespaceInfo) -> Check:
    if info.capabilities.sync_update:
        return Check("updates", "ok", "messages to runs are answered")
    return Check(
        "updates", "warn", "the server has no workflow updates", "send signals instead, or upgrade it"
    )


def _commands(loaded: Loaded, info: NamespaceInfo) -> Check:
    if info.capabilities.worker_commands:
        return Check("worker commands", "ok", "an interrupt reaches an agent at once")
    if _is_cloud(loaded):
        mend = "ask Temporal's support for worker commands"
    else:
        mend = (
            "start the server with frontend.WorkerCommandsEnabled=true and "
            "system.enableCancelActivityWorkerCommand=true in its dynamic configuration"
        )
    return Check("worker commands", "warn", "missing: an interrupt waits for the next heartbeat", mend)


async def _search_attributes(client: Client, loaded: Loaded, *, fix: bool) -> Check:
    name = "search attributes"
    try:
        known = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=loaded.namespace)
        )
    except RPCError as error:
        return Check(name, "warn", f"cannot be listed: {error.message}", _register(loaded, SEARCH_ATTRIBUTES))
    wrong = [
        attribute
        for attribute, kind in SEARCH_ATTRIBUTES.items()
        if known.custom_attributes.get(attribute, kind) != kind
    ]
    if wrong:
        seen = f"of another type: {', '.join(wrong)}"
        return Check(name, "fail", seen, "remove them, then run `stepwise doctor --fix`")
    missing = [attribute for attribute in SEARCH_ATTRIBUTES if attribute not in known.custom_attributes]
    if not missing:
        return Check(name, "ok", ", ".join(SEARCH_ATTRIBUTES))
    if not fix or _is_cloud(loaded):
        return Check(name, "warn", f"missing: {', '.join(missing)}", _register(loaded, missing))
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=loaded.namespace,
                search_attributes={attribute: SEARCH_ATTRIBUTES[attribute] for attribute in missing},
            )
        )
    except RPCError as error:
        return Check(name, "warn", f"cannot be registered: {error.message}", _register(loaded, missing))
    return Check(name, "ok", f"registered: {', '.join(missing)}")


def _register(loaded: Loaded, names: Collection[str]) -> str:
    missing = [(name, TYPE_NAMES[kind]) for name, kind in SEARCH_ATTRIBUTES.items() if name in names]
    if _is_cloud(loaded):
        pairs = [word for name, kind in missing for word in ("--sa", f"{name}={kind}")]
        words = ["tcld", "namespace", "search-attributes", "add", "--namespace", loaded.namespace]
        return typed([*words, *pairs])
    pairs = [word for name, kind in missing for word in ("--name", name, "--type", kind)]
    create = temporal_command(loaded, "operator", "search-attribute", "create", *pairs)
    return f"stepwise doctor --fix, or: {create}"


async def _worker(client: Client, loaded: Loaded) -> Check:
    queue = loaded.settings.task_queue
    pollers = await polling(client, loaded.namespace, queue)
    if pollers:
        return Check("worker", "ok", f"{', '.join(pollers)} on task queue {queue}")
    return Check(
        "worker", "fail", f"none polls task queue {queue}", "start one: stepwise dev, or python worker.py"
    )


async def polling(client: Client, namespace: str, queue: str) -> list[str]:
    """Return the identities of the workers that asked for workflow tasks of a queue lately."""
    described = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    since = datetime.now(UTC) - POLLED_WITHIN
    return sorted(
        {poller.identity for poller in described.pollers if poller.last_access_time.ToDatetime(UTC) > since}
    )


async def _stuck(client: Client, loaded: Loaded) -> Check:
    name = "stuck runs"
    try:
        ids = [run.id async for run in client.list_workflows(_STUCK, limit=MAX_STUCK)]
    except RPCError as error:
        return Check(name, "warn", f"cannot be listed: {error.message}", "upgrade the server")
    if not ids:
        return Check(name, "ok", "none")
    mend = temporal_command(loaded, "workflow", "show", "--workflow-id", ids[0])
    return Check(
        name, "warn", f"their code fails: {', '.join(ids)}", f"{mend}; then put back the code they began with"
    )
