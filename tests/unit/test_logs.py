"""Log lines: their fields, their redaction, and that they never hurt the caller."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from system import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    before = {name: _state(name) for name in ("stepwise", "temporalio")}
    yield io.StringIO()
    for name, (handlers, level, propagate) in before.items():
        target = logging.getLogger(name)
        target.handlers, target.propagate = handlers, propagate
        target.setLevel(level)


def _state(name: str) -> tuple[list[logging.Handler], int, bool]:
    target = logging.getLogger(name)
    return list(target.handlers), target.level, target.propagate


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def _hide(text: str) -> str:
    return text.replace("s3cret", "***")


def test_a_record_is_one_json_line_with_its_place(stream: io.StringIO) -> None:
    logs.set_up(stream=stream)

    logs.logger("activities").warning(
        "gate %s\nfailed",
        "lint",
        extra={"run_id": "r", "step": "fix", "visit": 1, "attempt": 2, "exit_code": 3},
    )

    (line,) = _lines(stream)
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "WARNING",
        "logger": "stepwise.activities",
        "message": "gate lint\nfailed",
        "run_id": "r",
        "step": "fix",
        "visit": 1,
        "attempt": 2,
        "exit_code": 3,
    }


def test_the_place_of_a_task_is_on_all_of_its_lines_and_on_no_others(stream: io.StringIO) -> None:
    logs.set_up(stream=stream)
    log = logs.logger("store")

    async def task(run_id: str, other: asyncio.Event, own: asyncio.Event) -> None:
        with logs.placed(run_id=run_id, step="fix"):
            own.set()
            await other.wait()
            log.info("inside")

    async def both() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        await asyncio.gather(task("a", first, second), task("b", second, first))

    asyncio.run(both())
    log.info("outside")

    assert sorted((line["message"], line["run_id"] or "") for line in _lines(stream)) == [
        ("inside", "a"),
        ("inside", "b"),
        ("outside", ""),
    ]


def test_an_exception_is_one_redacted_field(stream: io.StringIO) -> None:
    logs.set_up(stream=stream, redact=_hide)

    try:
        int("the s3cret is out")
    except ValueError:
        logs.logger("store").exception("it broke")

    (line,) = _lines(stream)
    assert "ValueError: invalid literal for int() with base 10: 'the *** is out'" in line["exception"]
    assert "Traceback" in line["exception"]


def test_every_text_is_redacted_wherever_it_stands(stream: io.StringIO) -> None:
    logs.set_up(stream=stream, redact=_hide)

    logs.logger("x").info(
        "s3cret %s", "s3cret", extra={"deep": {"s3cret": ["s3cret", ("s3cret",)]}, "path": _Text("s3cret")}
    )

    assert "s3cret" not in stream.getvalue()
    assert _lines(stream)[0]["deep"] == {"***": ["***", ["***"]]}


class _Text:
    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class _Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_redaction_that_fails_lets_nothing_out(stream: io.StringIO) -> None:
    def broken(_text: str) -> str:
        raise RuntimeError("broken")

    logs.set_up(stream=stream, redact=broken)

    logs.logger("x").error("s3cret", extra={"more": "s3cret"})

    assert "s3cret" not in stream.getvalue()
    assert _lines(stream)[0]["message"] == logs.WITHHELD


@pytest.mark.parametrize("form", ["json", "text"])
def test_nothing_that_is_logged_can_raise(
    form: logs.Format, stream: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up(stream=stream, form=form)
    log = logs.logger("x")
    ring: list[object] = []
    ring.append(ring)

    log.info("%d pieces", "many")
    log.info(
        "odd %s", "\ud800", extra={"broken": _Broken(), "ring": ring, "nan": float("nan"), "level": "mine"}
    )
    stream.close()
    log.info("nobody listens")

    assert capsys.readouterr().err == ""


def test_arguments_that_do_not_fit_are_still_shown(stream: io.StringIO) -> None:
    logs.set_up(stream=stream)

    logs.logger("x").info("%d pieces", "many")

    assert _lines(stream)[0]["message"] == "%d pieces ('many',)"


def test_an_extra_field_does_not_replace_one_of_ours(stream: io.StringIO) -> None:
    logs.set_up(stream=stream)

    logs.logger("x").info("hello", extra={"level": "mine", "logger": "other"})

    (line,) = _lines(stream)
    assert (line["level"], line["logger"]) == ("INFO", "stepwise.x")
    assert (line["extra.level"], line["extra.logger"]) == ("mine", "other")


def test_a_long_text_is_cut_and_said(stream: io.StringIO) -> None:
    logs.set_up(stream=stream)

    logs.logger("x").info("y" * (logs.MAX_TEXT + 1))

    message = _lines(stream)[0]["message"]
    assert message.endswith(f"… [{logs.MAX_TEXT + 1} characters]")
    assert len(message) < logs.MAX_TEXT + 50


def test_setting_up_again_changes_and_doubles_nothing(stream: io.StringIO) -> None:
    logs.set_up(stream=io.StringIO(), level="ERROR")
    logs.set_up(stream=stream, level="INFO")
    logs.set_up(stream=stream, level="INFO")

    logs.logger("x").info("once")
    logs.logger("x").debug("below the level")

    assert [line["message"] for line in _lines(stream)] == ["once"]


def test_warnings_of_the_sdk_are_lines_too_and_its_chatter_is_not(stream: io.StringIO) -> None:
    logs.set_up(stream=stream)

    logging.getLogger("temporalio.worker").info("chatter")
    logging.getLogger("temporalio.worker").warning("poll failed")

    assert [line["message"] for line in _lines(stream)] == ["poll failed"]


def test_text_is_for_people(stream: io.StringIO) -> None:
    logs.set_up(stream=stream, form="text")

    logs.logger("worker").info("ready", extra={"step": "fix", "queue": "q"})

    text = stream.getvalue()
    assert "INFO    worker: ready  [step=fix queue=q]" in text


def test_a_stream_with_few_characters_gets_escapes(stream: io.StringIO) -> None:
    del stream
    raw = io.BytesIO()
    logs.set_up(stream=io.TextIOWrapper(raw, encoding="ascii", write_through=True), form="text")

    logs.logger("x").info("caf\u00e9")

    assert b"caf\\xe9" in raw.getvalue()
