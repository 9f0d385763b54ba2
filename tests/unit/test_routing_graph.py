"""What a flow's routing rules draw."""

from __future__ import annotations

from typing import Any

from schemas.flow import FlowSpec
from workflows.routing import (
    back_edges,
    body,
    find_unbounded,
    forward,
    no_path_to_terminal,
    successors,
    unreachable,
)


def flow(**routings: str | tuple[str, ...]) -> FlowSpec:
    """Build a flow: ``"b"`` linear, ``("loop", target, next)``, ``("branch", targets…)``, ``()`` terminal."""
    steps = []
    for name, way in routings.items():
        routing: dict[str, Any]
        if isinstance(way, str):
            routing = {"kind": "linear", "next": way}
        elif not way:
            routing = {"kind": "terminal"}
        elif way[0] == "loop":
            routing = {"kind": "microloop", "loop_target": way[1], "next": way[2]}
        else:
            *when, default = way[1:]
            rules = [{"field": "status", "operator": "equals", "value": "x", "next": to} for to in when]
            routing = {"kind": "branch", "when": rules, "default": default}
        steps.append({"id": name, "agent": "a", "objective": "o", "routing": routing})
    return FlowSpec.model_validate({"id": "f", "version": 1, "title": "t", "steps": steps})


def test_successors_are_each_target_once_and_forward_is_the_one_without_a_choice() -> None:
    spec = flow(a="b", b=("loop", "a", "c"), c=("branch", "a", "b", "a"), d=("loop", "c", "c"), e=())
    assert [successors(step) for step in spec.steps] == [["b"], ["a", "c"], ["a", "b"], ["c"], []]
    assert [forward(step) for step in spec.steps] == ["b", "c", "a", "c", None]
    assert back_edges(spec) == [("b", "a"), ("d", "c")]


def test_the_body_of_a_loop_is_what_lies_between_its_target_and_its_owner() -> None:
    spec = flow(
        before="build",
        build=("branch", "review", "test"),
        test="review",
        review=("loop", "build", "after"),
        after=(),
    )
    assert body(spec, "review") == ("build", "test", "review")
    assert body(spec, "build") == ()
    assert body(spec, "nowhere") == ()


def test_a_self_loop_is_its_own_body() -> None:
    assert body(flow(a=("loop", "a", "b"), b=()), "a") == ("a",)


def test_an_outer_loop_holds_the_inner_one_and_not_the_other_way_round() -> None:
    spec = flow(plan="code", code=("loop", "code", "review"), review=("loop", "plan", "end"), end=())
    assert body(spec, "code") == ("code",)
    assert body(spec, "review") == ("plan", "code", "review")


def test_a_target_that_does_not_lead_back_is_still_part_of_the_loop() -> None:
    spec = flow(a=("loop", "b", "b"), b=())
    assert body(spec, "a") == ("a", "b")


def test_a_cycle_without_a_microloop_is_unbounded() -> None:
    spec = flow(a="b", b=("branch", "c", "d"), c="a", d=())
    assert find_unbounded(spec) == [["a", "b", "c"]]


def test_a_microloop_bounds_only_its_own_way_back() -> None:
    assert find_unbounded(flow(a="b", b=("loop", "a", "c"), c=())) == []
    assert find_unbounded(flow(a="b", b=("loop", "a", "a"), c=())) == [["a", "b"]]
    assert find_unbounded(flow(a=("loop", "a", "a"))) == [["a"]]


def test_each_separate_cycle_is_found_once_at_its_first_step() -> None:
    spec = flow(x="a", a="b", b=("branch", "a", "c"), c="d", d=("branch", "c", "c", "e"), e="e")
    assert find_unbounded(spec) == [["a", "b"], ["c", "d"], ["e"]]


def test_the_shortest_cycle_stands_for_those_that_share_a_step() -> None:
    assert find_unbounded(flow(a=("branch", "b", "c"), b="c", c="a")) == [["a", "c"]]


def test_steps_nobody_leads_to_are_unreachable() -> None:
    assert unreachable(flow(a="c", b="c", c=("loop", "a", "d"), d=(), e=())) == ["b", "e"]


def test_steps_that_never_end_have_no_path_to_a_terminal() -> None:
    assert no_path_to_terminal(flow(a=("branch", "b", "c"), b="b", c=())) == ["b"]
    assert no_path_to_terminal(flow(a="b", b=("loop", "a", "a"))) == ["a", "b"]


def test_a_target_that_is_no_step_is_passed_over() -> None:
    spec = flow(a=("branch", "ghost", "b"), b=("loop", "phantom", "c"), c=())
    assert (find_unbounded(spec), unreachable(spec), no_path_to_terminal(spec)) == ([], [], [])
    assert body(spec, "b") == ("b",)
