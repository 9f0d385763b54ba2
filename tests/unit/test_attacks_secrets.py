"""Attacks on secrecy: a key never enters a run by what people type, and a name never reads like one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import run
from policy.secrets import key_within, secret_values
from policy.start import refuse_secrets
from schemas.errors import BadInput
from schemas.run import FlowInput
from store.redaction import Redactor

ROOT = Path(__file__).resolve().parents[2]
GITHUB = "ghp_" + "aB3" * 12
FLOW = """\
id: mine
version: 1
title: Mine
params:
  url: {default: none}
steps:
  - {id: work, agent: implementer, objective: "Do ${task} at ${params.url}.", routing: {kind: terminal}}
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"use {GITHUB}", "github"),
        ("key AKIAIOSFODNN7EXAMPLE here", "aws"),
        ("set password=hunter2hunter2", "assignment"),
        ("Authorization: Bearer abcdefgh12345678", "header"),
        ("clone https://user:tok3nvalue@host/x", "userinfo"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc", "pem"),
    ],
)
def test_a_key_in_words_is_found(text: str, kind: str) -> None:
    assert key_within(text) == ("", kind)
    assert key_within({"params": {"a": ["b", text]}}) == ("params.a", kind)


@pytest.mark.parametrize(
    "text",
    [
        "the password: must be 8 characters",
        "authorization: only admins may",
        "see https://git@github.com/x/y",
        "fix token=parse_token(s2)",
        "the secret_key: $SECRET_KEY1 is read too late",
        "api_key = os.environ['API_KEY1'] fails",
        "the bearer of token 12345678",
        "mean() is wrong",
    ],
)
def test_prose_about_secrets_is_no_key(text: str) -> None:
    assert key_within(text) is None


def test_the_name_of_a_variable_is_no_key_and_its_value_is_one() -> None:
    assert key_within({"params": {"api_key": "DEPLOY_TOKEN_2", "token": True}}) is None
    assert key_within({"params": {"api_key": "abcd1234efgh"}}) == ("params.api_key", "assignment")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"task": f"use {GITHUB}"}, "task holds what looks like a secret (github)"),
        ({"params": {"url": f"https://x/?{GITHUB}"}}, "params.url holds what looks like a secret (github)"),
        ({"model": GITHUB}, "model holds"),
        ({"repo": f"/src/{GITHUB}"}, "repo reads like a secret"),
        ({"repo": f"https://h/{GITHUB}/x.git"}, "repo reads like a secret"),
        ({"base": GITHUB}, "base reads like a secret"),
        ({"task": "it is staging-passphrase"}, "the input holds a secret of this worker"),
    ],
)
def test_a_start_with_a_key_is_refused_by_field(changes: dict[str, object], says: str) -> None:
    redactor = Redactor(["staging-passphrase"])
    given = FlowInput.model_validate({"flow": "fix", "task": "t", "repo": "/src/x", **changes})
    with pytest.raises(BadInput) as raised:
        refuse_secrets(given, "w", redacted=redactor.text, known=redactor.knows)
    assert raised.value.code == "BadFlowInput"
    assert says in str(raised.value)
    assert GITHUB not in str(raised.value)


def test_a_setting_that_names_a_variable_makes_no_secret_of_the_name() -> None:
    environment = {"STEPWISE_GIT_CREDENTIALS": "GIT_TOKEN", "GIT_TOKEN": "tok3n-of-the-worker"}
    assert secret_values(environment, "GIT_TOKEN") == ["tok3n-of-the-worker"]


@pytest.mark.parametrize(
    "name", [GITHUB, "pypi-publish-workflow-broken-0123456789ab", "update-sk-locale-strings-0123456789ab"]
)
def test_a_run_whose_id_would_be_redacted_is_refused_before_it_leaves_anything(name: str) -> None:
    given = FlowInput(flow="fix", task="t", repo="/src/x")
    with pytest.raises(BadInput, match="the workflow id reads like a secret"):
        refuse_secrets(given, "fine", name)
    refuse_secrets(given, "fix-1", "fix-1-0123456789ab")


@pytest.mark.parametrize(
    "words",
    [
        ["--task", f"use {GITHUB}", "--repo", "https://h/x"],
        ["--task", "t", "--repo", "https://h/x", "--param", f"url={GITHUB}"],
        ["--task", "t", "--repo", "https://h/x", "--workflow-id", GITHUB],
        ["--task", "t", "--repo", f"https://{GITHUB}@h/x"],
    ],
)
def test_a_key_that_was_typed_is_not_even_sent(
    own_place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (own_place / "mine.yaml").write_text(FLOW)
    # Asking this server would be another error.
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    assert run(["start", "mine.yaml", *words]) == 2
    said = capsys.readouterr().err
    assert "secret" in said or "user-info" in said
    assert GITHUB not in said
    assert "Temporal server" not in said


def test_other_processes_of_a_workers_user_read_neither_its_environment_nor_its_memory() -> None:
    code = "from system.processes import keep_to_itself as k; k(); import ctypes; print(ctypes.CDLL(None).prctl(3))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout.strip() == b"0", "PR_GET_DUMPABLE: /proc/<pid>/environ and mem are root's alone"
