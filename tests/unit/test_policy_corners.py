"""What agents may run, written in the rarer ways that shells and programs allow; data only, nothing here is ever run."""

from __future__ import annotations

from typing import Final

import pytest
from command_table import WORKSPACE

from policy import secrets
from policy.commands import ALLOWED, judge, judge_read_only

LONG: Final = "a" * 3_000
MANY: Final = " ".join("abcdefghi")

DENIED: Final[dict[str, tuple[str, ...]]] = {
    "E_CMD_OUTSIDE": (
        "cp -t/etc x",
        "cp --target-directory=/etc x",
        "chown me /etc/passwd",
        "rsync -a build/ /etc/x",
    ),
    "E_CMD_REMOVE": (
        "find -L / -name core -delete",
        "find -O3 / -name core -delete",
        "nice -n 5 -- rm -rf /",
        "bash --login -c 'rm -rf /'",
        "case x in x) rm -rf /; esac",
        "f() (rm -rf /); f",
        "rm -rf {a,{b,/}}",
        'rm -rf "/\\\n"',
        "echo `ls\nrm -rf /`",
        "echo `rm -rf \\$HOME`",
    ),
    "E_CMD_DYNAMIC": (
        "dd if=$x of=y",
        "xargs --replace=X rm -rf X",
        f"x={LONG}{LONG}; rm -rf $x",
        f"x={LONG}; rm -rf $x/$x",
        f"for x in {MANY}; do for y in {MANY}; do rm -rf $x$y; done; done",
    ),
    "E_CMD_PIPE_TO_SHELL": ("bash -- /dev/stdin", "bash --norc -"),
    "E_GIT_OPTION": ("git diff --output f", "git apply --directory=/x a.patch"),
    "E_GIT_DISCARD": ("git restore --pathspec-from-file=x",),
    "E_CMD_PARSE": (
        "find . -name x -exec \\;",
        "find . -name x -exec rm {}",
        "fd x -x",
        "fd -xrm x",
        "bash -c",
        "bash -z a.sh",
        "bash --posix -c 'cat <(ls)'",
        "sh -c 'cat <(ls)'",
        "sh -c 'a=(x)'",
        'echo "a',
        'echo "a\\',
        "sh -c 'echo \"a'",
        "case x in x) true && ;; esac",
        "case x on x) true;; esac",
        "{ true && }",
        "echo x > {a,b}",
        "for 'x' in a; do true; done",
        'cat <<"a$b"\nx\na$b\n',
        "cat <<A 'x\ny'\nA\n",
        'cat <<A "x\ny"\nA\n',
        "cat <<A $(true\ntrue)\nx\nA\n",
        "cat <<AB\nA\\\nB\nAB\n",
        "echo $'a\\",
        "echo $'\\ca'",
        "echo $'\\0'",
        "echo $'\\ud800'",
    ),
}
ALLOWED_TEXTS: Final = (
    "cp -tbuild x",
    "cp --target-directory=build x",
    "chown me a",
    "rsync -a src/ build/",
    "find -L . -name '*.pyc' -delete",
    "git --version",
    "git apply a.patch",
    'git commit -m "one\n\ntwo"',
    "export FOO",
    "env FOO=1",
    "ls | xargs",
    "bash -- build.sh",
    "bash --norc build.sh",
    "trap - EXIT",
    "source",
    "hash -r",
    "case x in x) true; esac",
    "f() (true); f",
    "rm -rf build/{a,{b,c}}",
    "printf %s $'a\\nb\\q'",
    "f() { a; b; }; a() { c; }; b() { c; }; c() { true; }; f",
)


@pytest.mark.parametrize(("code", "command"), [(code, row) for code, rows in DENIED.items() for row in rows])
def test_what_is_denied_stays_denied_however_rarely_it_is_written_so(code: str, command: str) -> None:
    verdict = judge(command, workspace=WORKSPACE)
    assert (verdict.decision, verdict.code) == ("deny", code), verdict.reason


@pytest.mark.parametrize("command", ALLOWED_TEXTS)
def test_what_is_harmless_stays_allowed_however_rarely_it_is_written_so(command: str) -> None:
    assert judge(command, workspace=WORKSPACE) == ALLOWED


def test_a_session_that_only_reads_may_open_a_file_and_do_nothing_with_it() -> None:
    assert judge_read_only("< a", workspace=WORKSPACE) == ALLOWED


@pytest.mark.parametrize("command", ["sort $x", "uniq $x", "date $x"])
def test_a_program_with_writing_options_takes_no_unknown_word_where_only_reading_is_allowed(
    command: str,
) -> None:
    assert judge(command, workspace=WORKSPACE) == ALLOWED
    assert judge_read_only(command, workspace=WORKSPACE).code == "E_CMD_READ_ONLY"


def test_a_text_that_still_has_secrets_after_the_last_pass_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "password=hunter2hunter2"
    assert secrets.redact(text) != text
    monkeypatch.setattr(secrets, "MAX_PASSES", 1)
    with pytest.raises(ValueError, match="after 1 passes"):
        secrets.redact(text)
