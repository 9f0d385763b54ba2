"""What agents may run: every kind of attack is denied with its code, what developers do all day is allowed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from chance import examples
from command_table import ALLOWED, DENIED, NOT_READ, READ, WORKSPACE
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from policy.commands import ALLOWED as ALLOW
from policy.commands import MAX_COMMAND, judge, judge_argv, judge_read_only
from policy.shell_words import RefusedCommandError

ROWS = [(code, row) for code, rows in DENIED.items() for row in rows]
PARTS = (
    *("mkfs",) * 5,
    *(" ", " ", "\n", "\t", ";", "&", "|", "&&", "||", "|&", "!", "#", " #", "-", "x", "é"),
    *("(", ")", "((", "))", "{ ", "; }", "}", "{a,", "[", "]", "[[ ", " ]]", "@(", "=~"),
    *(
        "$",
        "$(",
        "$((",
        "$[",
        "${",
        "${x",
        "${x:-",
        "${#",
        "${!",
        "`",
        "'",
        '"',
        "$'",
        '$"',
        "\\",
        "\\\n",
        "\\'",
        "\\x27",
    ),
    *("<<A\n", "<<-'B'\n", "A\n", "\nA\n", "\tB\n", "<<<", "<(", "<", ">", ">&", "&>", "2>", "{fd}>"),
    *("=", "a=", "a=(", "a[", "]=", "export x=", "declare ", "f() ", "function f "),
    *(
        "case x in ",
        "x) ",
        ";;",
        " esac",
        "if ",
        "; then ",
        "; fi",
        "for x in ",
        "; do ",
        "; done",
        "select ",
        "coproc ",
    ),
    *("echo ", "true", "eval ", "bash -c '", "time ", "command ", "exec ", "*", "?", "~"),
)


@pytest.mark.parametrize(("code", "command"), ROWS)
def test_what_destroys_publishes_or_escapes_is_denied_with_its_code(code: str, command: str) -> None:
    verdict = judge(command, workspace=WORKSPACE)
    assert (verdict.decision, verdict.code) == ("deny", code), verdict.reason
    assert verdict.reason


@pytest.mark.parametrize("command", ALLOWED)
def test_what_developers_do_all_day_is_allowed(command: str) -> None:
    assert judge(command, workspace=WORKSPACE) == ALLOW


@pytest.mark.parametrize("command", READ)
def test_a_session_that_only_reads_may_read(command: str) -> None:
    assert judge_read_only(command, workspace=WORKSPACE) == ALLOW


@pytest.mark.parametrize("command", [*NOT_READ, *(row for _, row in ROWS)])
def test_a_session_that_only_reads_may_do_nothing_else(command: str) -> None:
    verdict = judge_read_only(command, workspace=WORKSPACE)
    assert verdict.decision == "deny"
    assert verdict.code != "E_CMD_JUDGE"


def test_without_a_workspace_every_absolute_path_is_outside() -> None:
    assert judge("rm -rf /ws/build").code == "E_CMD_REMOVE"
    assert judge("rm -rf build") == ALLOW


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["rm", "-rf", "/"], "E_CMD_REMOVE"),
        (["git", "push"], "E_GIT_PUSH"),
        (["bash", "-c", "rm -rf /"], "E_CMD_REMOVE"),
        (["ls\x00"], "E_CMD_CHARACTERS"),
        ([], "E_CMD_PARSE"),
        ([""], "E_CMD_PARSE"),
        (["pytest", "-q"], ""),
        (["echo", "$(rm -rf /)", "; rm -rf /", "*"], ""),
        (["rm", "-rf", "*"], "E_CMD_REMOVE"),
        (["rm", "a b; c"], ""),
    ],
)
def test_arguments_without_a_shell_are_judged_as_they_are(argv: list[str], code: str) -> None:
    assert judge_argv(argv).code == code


@given(st.text(max_size=60) | st.lists(st.sampled_from(PARTS), max_size=30).map("".join))
@examples(400)
def test_judging_never_raises_and_always_says_the_same(command: str) -> None:
    assert judge(command) == judge(command)
    assert judge(command).code != "E_CMD_JUDGE"
    assert judge_read_only(command).code != "E_CMD_JUDGE"
    assert judge_argv(command.split(" ")).code != "E_CMD_JUDGE"
    if judge(command).decision == "deny":
        assert judge_read_only(command).decision == "deny"


@st.composite
def requoted(draw: st.DrawFn) -> str:
    """Write the words of a denied command in other ways that mean the same."""
    words = draw(
        st.sampled_from(
            [["rm", "-rf", "/"], ["git", "push", "-f"], ["git", "reset", "--hard"], ["sudo", "ls"]]
        )
    )
    return draw(st.sampled_from([" ", "  ", "\t", " \\\n "])).join(
        "".join(
            draw(
                st.sampled_from(
                    [char, f"'{char}'", f'"{char}"', f"\\{char}", f"$'\\x{ord(char):02x}'", f"{char}''"]
                )
            )
            for char in word
        )
        for word in words
    )


@given(requoted())
@examples(300)
def test_a_denied_command_that_is_quoted_otherwise_stays_denied(command: str) -> None:
    assert judge(command).decision == "deny"


SURROUNDINGS = (
    "{}", "ls; {}", "ls\n{}", "ls & {}", "ls && {}", "ls | {}", "({})", "{{ {}; }}", "echo $({})", 'echo "$({})"',
    "! {}", "if {}; then ls; fi", "while {}; do ls; done", "f() {{ {}; }}; f", "cat <({})", "X=1 {}", "env X=1 {}",
    "nohup {}", "timeout 5 {}", "time {}", "nice -n 1 {}", "setsid {}", "command {}", "exec {}", "eval {}",
    "case x in x) {};; esac", "cat <<A\n$({})\nA", "x=$({})", "[[ -n $({}) ]]", "> out {}",
)  # fmt: skip


@given(
    st.lists(st.sampled_from(SURROUNDINGS), max_size=4), st.sampled_from(["rm -rf /", "git push", "sudo ls"])
)
@examples(300)
def test_what_stands_around_a_denied_command_does_not_hide_it(around: list[str], command: str) -> None:
    for one in around:
        command = one.format(command)
    assert judge(command).decision == "deny"


@given(st.sampled_from(["bash", "sh"]), st.integers(1, 6))
@examples(12)
def test_a_denied_command_in_a_script_in_a_script_stays_denied(shell: str, depth: int) -> None:
    command = "rm -rf /"
    for _ in range(depth):
        command = f"{shell} -c {shlex.quote(command)}"
    assert judge(command).code == "E_CMD_REMOVE"


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``bin`` has nothing but a harmless program, which says in ``ran`` that it ran."""
    folder = tmp_path_factory.mktemp("stub")
    program = folder / "bin" / "mkfs"
    for name in ("bin", "here"):
        (folder / name).mkdir()
    program.write_text(f"#!/bin/sh\necho ran >> {shlex.quote(str(folder / 'ran'))}\n")
    program.chmod(0o755)
    return folder


STARTS = (
    *("echo ", "echo '", 'echo "', "true # ", "cat <<A\n", "cat <<'A'\n", "x=", "case x in x) ", "echo a\\"),
    "[[ a == ",
)
ENDS = ("", "'", '"', "\nA\n", " x", "; true")
"""What may make a text of what stands between, so that it is allowed."""
SOME_PARTS = st.lists(st.sampled_from(PARTS), max_size=3)
TEXTS = st.one_of(
    st.lists(st.sampled_from(PARTS), min_size=2, max_size=12),
    st.tuples(st.sampled_from(STARTS), SOME_PARTS, SOME_PARTS, st.sampled_from(ENDS)).map(
        lambda one: [one[0], *one[1], "mkfs", *one[2], one[3]]
    ),
)


@pytest.mark.parametrize("shell", ["bash", "sh"])
@given(parts=TEXTS)
@examples(300, suppress=[HealthCheck.function_scoped_fixture])
def test_no_shell_runs_in_an_allowed_text_what_is_denied(shell: str, stub: Path, parts: list[str]) -> None:
    text = "".join(parts)
    asked = text if shell == "bash" else f"sh -c {shlex.quote(text)}"
    if "mkfs" not in text or judge(asked).decision == "deny":
        return
    program = shutil.which(shell)
    assert program is not None
    (stub / "ran").unlink(missing_ok=True)
    subprocess.run(
        [program, "-c", text],
        env={"PATH": str(stub / "bin")},
        cwd=stub / "here",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert not (stub / "ran").exists(), text


LONG_ENOUGH = 16_384
LONG = (
    *(
        "a",
        "a ",
        "'a' ",
        "$(",
        "`",
        "((",
        "[",
        "{",
        "{.",
        "..",
        "\\",
        "\\\n",
        "<<A\n",
        "a\\\n",
        "{a,b}",
        "a=(",
        "${x:-",
    ),
    *(
        "x|",
        "[[ ",
        "case x in ",
        ";",
        "rm -r ",
        "git push ",
        "-r ",
        "o",
        "+",
        "uv nice ",
        "rm ",
        "-delete ",
        "*",
        "$x",
    ),
    *(
        "-exec x ; ",
        "xargs ",
        "find a b -exec ",
        "x=a;",
        "1",
        "#\n",
        "f(){ f;};",
        "$x/",
        ": (",
        "a..",
        "-",
        "~",
        "/",
    ),
)
BEFORE = (
    "",
    "ls ",
    "eval ",
    "rm ",
    "chmod ",
    "find . ",
    "uv ",
    "python -c '",
    "((",
    "[[ ",
    "x=",
    "cat <<A\n",
    "git ",
)


@pytest.mark.parametrize("before", BEFORE)
def test_a_long_command_line_is_judged_within_bounds(before: str) -> None:
    for part in LONG:
        text = (before + part * LONG_ENOUGH)[:LONG_ENOUGH]
        assert judge(text).code != "E_CMD_JUDGE"
        if "'" in before:
            assert judge(f"{text[:-1]}'").code != "E_CMD_JUDGE"


@pytest.mark.parametrize("part", ["a", "[", "{", "o", "rm -r ", "git push "])
def test_the_longest_command_line_is_judged_within_bounds(part: str) -> None:
    for before in ("eval ", "chmod -R ", "((", "python -c "):
        assert judge((before + part * MAX_COMMAND)[:MAX_COMMAND]).code != "E_CMD_JUDGE"


def test_a_refusal_says_its_code() -> None:
    assert str(RefusedCommandError("E_X", "why")) == "E_X: why"
