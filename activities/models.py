"""Which model a transport is asked for: a name belongs to the provider it was named for, and goes to no other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from activities.choosing import named_transports
from schemas.flow import FlowSpec, StepSpec
from schemas.run import FlowInput
from schemas.settings import WorkerSettings
from transports.port import Transport


@dataclass(frozen=True)
class Models:
    """The models named for a step, each with the transport it was named for, the one that counts most first.

    ``first`` is the first transport of the step's own list, whichever works now.
    """

    first: str
    named: tuple[tuple[str, str], ...]
    offered: Mapping[str, Transport]

    def of(self, name: str) -> str | None:
        """Return the model that a transport is asked for; None for its own default."""
        return next((model for model, owner in self.named if self.is_same(owner, name)), None)

    def withheld(self, name: str) -> tuple[str, str] | None:
        """Return the model, and its transport, that would count if this one's provider had it; None without any."""
        return self.named[0] if self.named and not self.is_same(self.named[0][1], name) else None

    def is_same(self, one: str, other: str) -> bool:
        """Tell whether what is named for a transport means the same to another one: they have one provider."""
        return one == other or self._provider(one) == self._provider(other)

    def _provider(self, name: str) -> str:
        transport = self.offered.get(name)
        # One that is not offered here shares its models with nobody.
        return transport.capabilities.provider_name if transport is not None else f"transport {name}"


def models_of(
    spec: FlowSpec,
    step: StepSpec,
    persona_model: str | None,
    given: FlowInput | None,
    settings: WorkerSettings,
    offered: Mapping[str, Transport],
) -> Models:
    """Return the models of a step: its own, the run's, the flow's and its agent's.

    Each belongs to the first transport that is named beside it, else to the first of the step's list.
    """
    first = named_transports(spec, step, given, settings)[0]
    by_step = _first(step.transport) or _first(spec.defaults.transport) or first
    by_flow = _first(spec.defaults.transport) or by_step
    found = [
        (step.model, by_step),
        (given.model if given else None, first),
        (spec.defaults.model, by_flow),
        (persona_model, by_step),
    ]
    return Models(first, tuple((model, owner) for model, owner in found if model), offered)


def _first(named: str | list[str] | None) -> str | None:
    if isinstance(named, list):
        return named[0] if named else None
    return named
