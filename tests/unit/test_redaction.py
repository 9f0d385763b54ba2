"""Secrets are found, replaced by kind and digest, and never written; the patterns stay linear."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import get_args
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.secrets import MARKER, Finding, Kind, find, is_secret_name, marker, redact, secret_values
from store.errors import RedactionFailed
from store.redaction import Redactor

A36 = "abcDEF0123456789abcDEF0123456789abcd"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7bq1\nq83vEjR5vJ0n\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"

SECRETS = {
    "ghp": ("github", f"ghp_{A36}"),
    "ghs": ("github", f"ghs_{A36}"),
    "pat": ("github", f"github_pat_11ABC_{A36}"),
    "glpat": ("gitlab", "glpat-xYz0123456789abcdefg"),
    "ant": ("anthropic", f"sk-ant-api03-{A36}-AA"),
    "openai": ("openai", f"sk-{A36}{A36[:12]}"),
    "openai project": ("openai", f"sk-proj-{A36}"),
    "aws": ("aws", "AKIAIOSFODNN7EXAMPLE"),
    "aws session": ("aws", "ASIAIOSFODNN7EXAMPLE"),
    "google": ("google", "AIzaSyA0123456789abcdefghijklmnopqrstuv"),
    "google oauth": ("google", "ya29.a0AfH6SMBabcdefghijklmnop"),
    "slack bot": ("slack", "xoxb-123456789012-abcdefABCDEF"),
    "slack app": ("slack", "xapp-1-A0123456789-abcdef0123"),
    "stripe": ("stripe", "sk_live_abcdefghijklmnop"),
    "npm": ("npm", f"npm_{A36}"),
    "pypi": ("pypi", "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAw"),
    "hugging face": ("vendor", f"hf_{A36[:34]}"),
    "jwt": ("jwt", JWT),
    "pem": ("pem", PEM),
}

ASSIGNED = [
    "password=hunter22",
    "PGPASSWORD=hunter22 psql",
    "DB_PASSWORD: hunter22",
    'password = "hunter22"',
    "api_key: 'hunter22'",
    '{"client_secret": "hunter22"}',
    '{\\"password\\": \\"hunter22\\"}',
    'os.environ["API_KEY"] = "hunter22"',
    "config['token'] = 'hunter22'",
    'password: str = "hunter22"',
    "accessToken => hunter22,",
    "https://host/x?access_token=hunter22&y=1",
    "Server=a;Password=hunter22;Database=b",
    "mysql --password hunter22",
    "login --api-token=hunter22",
    "AWS_SECRET_ACCESS_KEY=hunter22",
    "<password>hunter22</password>",
    "secret_key_base: hunter22",
    "password=hunter22… [3000 characters in all]",
    "Authorization: hunter22",
    "authorization: token hunter22",
    "'Authorization': 'Bearer hunter22'",
    "-H 'X-Api-Key: hunter22'",
    "curl -H 'Authorization: Basic hunter22=='",
    "bearer hunter22hunter22",
    "https://user:hunter22@host/x",
    "https://hunter22@host/x.git",
    "postgres://app:hunter22@db:5432/x",
    "https://user:p@hunter22@host/x",
]

HARMLESS = [
    "def read(token: str, *, password: str | None = None) -> None: ...",
    "max_tokens=100 prompt_tokens: 12 tokenizer=gpt2 secretary: Jane",
    "password=${DB_PASSWORD} token=$TOKEN api_key={api_key} secret: ${{ secrets.X }}",
    'token = os.environ["TOKEN"]',
    "token = self.next_token()",
    "token = next(tokens)",
    "connect(password=password, token=token)",
    "task-management-application-2 and risk-assessment-2024-report-final",
    "ssh://git@github.com/a/b.git and https://github.com/a/b.git",
    "an eyJ is no token, and basic authentication is a phrase",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "https://example.org/@user/page?x=a@b",
]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "a {} b", "x={}\n", '"{}"', "line\\n{}\\nline", "({})", "%3D{}%26", "{}{}"]
)
def test_each_kind_of_secret_is_replaced_wherever_it_stands(name: str, around: str) -> None:
    kind, secret = SECRETS[name]
    text = redact(around.replace("{}", secret))
    assert secret[8:24] not in text
    assert f"[redacted:{kind}:" in text


@pytest.mark.parametrize("text", ASSIGNED)
def test_values_that_are_called_secret_are_replaced(text: str) -> None:
    assert "hunter22" not in redact(text)
    assert MARKER.search(redact(text))


@pytest.mark.parametrize("text", HARMLESS)
def test_code_and_prose_without_secrets_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_a_marker_tells_the_kind_and_the_digest_of_what_was_there() -> None:
    _, secret = SECRETS["ghp"]
    digest = hashlib.sha256(secret.encode()).hexdigest()[:8]
    assert find(f"a {secret} b") == [Finding("github", 2, 2 + len(secret))]
    assert redact(f"a {secret} b") == f"a [redacted:github:{digest}] b"


def test_secrets_that_overlap_become_one_marker_of_the_telling_kind() -> None:
    _, secret = SECRETS["ghp"]
    assert redact(f"token={secret}, x") == f"token={marker('github', secret)}, x"


def test_a_private_key_that_was_cut_off_is_still_taken_out() -> None:
    text = redact(PEM[:70] + "\nand so on")
    assert "MIIEow" not in text
    assert text.endswith("and so on")


@pytest.mark.parametrize("prefix", ["ghp_", "sk-ant-", "AKIA", "AIza", "xoxb-", "eyJ"])
def test_a_token_that_was_cut_short_is_taken_out(prefix: str) -> None:
    text = redact(f"output {prefix}a1B… [2345 characters in all]")
    assert "a1B" not in text
    assert text.endswith("… [2345 characters in all]")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_marker_itself_is_never_taken_for_a_secret(kind: Kind) -> None:
    text = f"{marker(kind, 'x')}tail, {marker(kind, 'x')}"
    assert find(text) == []
    assert MARKER.findall(text) == [marker(kind, "x")] * 2


def test_a_forged_marker_hides_no_secret() -> None:
    assert "hunter22" not in redact("password=[redacted:jwt:00000000]hunter22")
    assert "hunter22" not in redact("password=[redacted:hunter22:00000000]")


SEEDS = [
    "eyJ", "eyJaaaaaaaa.", "eyJaaaaa.aaaa", "sk-", "sk-a-", "AKIA", "ghp_", "password", "password=", 'password="',
    'password=\\"', "token='token=\"", "token:", "token`", "pass\\\\\\", "https://", "https://a:", "://a:b", "a@https://",
    "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nabcd ", "bearer ", "authorization: ", "xox", "pypi-",
    "--token ", "--a-b-c-token", "<password>", "<password", "token=&a", "api_key api ", "SG.aaaaaaaaaaaaaaaaaa.", "A",
    " ", "[redacted:jwt:00000000]", "token=[redacted:jwt:00000000]", "private_key_id", "a-", "\x00", "é",
]  # fmt: skip


@pytest.mark.timeout(30)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_megabyte_made_to_be_slow_is_read_in_linear_time(seed: str) -> None:
    text = (seed * 1_000_000)[:1_000_000]
    once = redact(text)
    assert redact(once) == once


@given(
    st.lists(
        st.sampled_from([*SEEDS, *ASSIGNED, *(secret for _, secret in SECRETS.values()), "\n", " ", "x"])
    )
)
def test_redacting_again_changes_nothing(parts: list[str]) -> None:
    redactor = Redactor(["redacted", "exact-value", "jwt:00"])
    once = redactor.text("".join(parts))
    assert redactor.text(once) == once
    assert Redactor(["redacted", "exact-value", "jwt:00"]).text("".join(parts)) == once


VALUE = 'pa/ss"wörd+?&1'


@pytest.mark.parametrize(
    "written",
    [
        VALUE,
        quote(VALUE, safe=""),
        quote(VALUE, safe="").lower(),
        json.dumps(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        json.dumps(json.dumps(VALUE)),
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
    ],
)
def test_a_known_value_is_taken_out_however_it_is_written(written: str) -> None:
    text = Redactor([VALUE]).text(f"<{written}>")
    assert text.strip('<>"\\') == marker("exact", VALUE)


@pytest.mark.parametrize("user", ["", "a", "ab", "abc"])
def test_a_known_value_is_found_inside_longer_base64(user: str) -> None:
    value = "correct-horse-battery"
    encoded = base64.b64encode(f"{user}:{value}:x".encode()).decode()
    text = Redactor([value]).text(encoded)
    assert marker("exact", value) in text
    assert len(text.replace(marker("exact", value), "")) <= len(encoded) - len(value)


def test_values_under_six_characters_are_not_looked_for() -> None:
    assert Redactor(["12345"]).text("12345 123456") == "12345 123456"
    assert "123456" not in Redactor(["123456\n"]).text("12345 123456")


def test_lines_of_a_known_value_are_secret_too() -> None:
    line = "MIIEowIBAAKCAQEA7bq1q83v"
    assert line not in Redactor([f"header\n{line}\n"]).text(f"+{line}")


def test_a_known_value_that_was_cut_short_is_taken_out() -> None:
    text = Redactor(["correct-horse-battery"]).text("it is correct-horse… [2345 characters in all]")
    assert "correct-horse" not in text
    assert text.startswith("it is [redacted:cut:")


def test_a_value_that_is_learnt_later_is_taken_out_from_then_on() -> None:
    redactor = Redactor()
    redactor.add("correct-horse")
    assert "correct-horse" not in redactor.text("correct-horse")


def test_bytes_that_are_no_text_keep_what_is_not_secret() -> None:
    data = b"\xff\x00 correct-horse \xfe"
    assert (
        Redactor(["correct-horse"]).data(data)
        == b"\xff\x00 " + marker("exact", "correct-horse").encode() + b" \xfe"
    )


def test_a_tree_is_cleaned_in_keys_leaves_and_secret_fields() -> None:
    redactor = Redactor(["correct-horse"])
    tree = {
        "a": ["correct-horse", 1, None, True, 1.5],
        "correct-horse": {"password": "x", "token": None, "tokens": "5"},
    }
    mark = marker("exact", "correct-horse")
    assert redactor.tree(tree) == {
        "a": [mark, 1, None, True, 1.5],
        mark: {"password": marker("assignment", "x"), "token": None, "tokens": "5"},
    }
    assert redactor.tree(redactor.tree(tree)) == redactor.tree(tree)


def test_what_cannot_be_redacted_is_refused_without_showing_it() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (object(), {"x": {1, 2}}, {1: "correct-horse"}, deep):
        with pytest.raises(RedactionFailed) as refused:
            Redactor(["correct-horse"]).tree(value)
        assert "correct-horse" not in str(refused.value)
        assert not refused.value.retryable


@pytest.mark.parametrize(
    "name",
    [
        "ANTHROPIC_API_KEY", "AWS_PROFILE", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "GH_TOKEN", "TEMPORAL_API_KEY",
        "PGPASSWORD", "MYSQL_PWD", "SSH_AUTH_SOCK", "NPM_CONFIG__AUTHTOKEN", "google_application_credentials",
        "STRIPE_SECRET", "GIT_ASKPASS", "KUBECONFIG", "SENTRY_DSN", "AZURE_CLIENT_ID", "DOCKER_AUTH_CONFIG",
    ],
)  # fmt: skip
def test_variables_with_such_names_never_pass(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "PWD",
        "LANG",
        "CI",
        "KEYBOARD",
        "TOKENIZERS_PARALLELISM",
        "MAX_OUTPUT_TOKENS",
        "STEPWISE_RUN",
    ],
)
def test_variables_with_plain_names_may_pass(name: str) -> None:
    assert not is_secret_name(name)


def test_the_secrets_of_an_environment_are_known_by_name_by_setting_and_by_pattern() -> None:
    secret = {
        "GITHUB_TOKEN": "abcdef",
        "AWS_SECRET_ACCESS_KEY": "ghijkl",
        "NAMED": "/mnopqr",
        "URL": "db://u:hunter22@h/x",
    }
    harmless = {
        "AWS_PROFILE": "default",
        "AWS_REGION": "eu-west-1",
        "SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
        "API_TOKEN": "",
        "PATH": "/usr/bin:/bin",
    }
    assert secret_values({**secret, **harmless}, "NAMED", "") == list(secret.values())
