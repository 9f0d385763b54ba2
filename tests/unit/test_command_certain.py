"""A name counts as its value only where every way that leads there has set it; elsewhere it may be nothing."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from chance import examples
from command_table import WORKSPACE
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from policy.commands import ALLOWED, judge
from policy.shell import read_script

UNSURE = (
    "false && x=build; rm -rf $x/*",
    "[ -d build ] && x=build; rm -rf $x/etc",
    "false || x=build; rm -rf $x/etc",
    "true || x=build && rm -rf $x/etc",
    "if false; then x=build; fi; rm -rf $x/etc",
    "if false; then x=a; elif true; then y=1; else x=b; fi; rm -rf $x/etc",
    "if a; then x=a; elif b; then x=b; fi; rm -rf $x/etc",
    "while false; do x=build; done; rm -rf $x/etc",
    "for i in $(ls); do x=build; done; rm -rf $x/etc",
    "case a in b) x=build;; esac; rm -rf $x/etc",
    "(x=build); rm -rf $x/etc",
    "{ x=build; } | cat; rm -rf $x/etc",
    "x=build | cat; rm -rf $x/etc",
    "x=build & rm -rf $x/etc",
    "true && x=build & rm -rf $x/etc",
    "echo $(x=build); rm -rf $x/etc",
    "f() { x=build; }; rm -rf $x/etc",
    "x=build true; rm -rf $x/etc",
    "x=build > /tmp/a/b; rm -rf $x/etc",
    "d=$x/etc; x=a; rm -rf $d",
    "x=a; d=$y; rm -rf $d/etc",
    "if a; then x=b; fi | cat; rm -rf $x/etc",
    "if a; then x=b; else x=c; fi | cat; rm -rf $x/etc",
    "if a; then x=b; else x=c; fi & rm -rf $x/etc",
    "cat <<A; x=b\n$(rm -rf $x/etc)\nA",
    "sh -c 'declare x=build; rm -rf $x/etc'",
    "git ls-files | until read f; do rm -rf $f/x; done",
    "git ls-files | while ! read f; do rm -rf $f/x; done",
    "git ls-files | while read f || rm -rf $f/x; do ls; done",
    "git ls-files '*.x' | while read f; do ls; done; rm -rf $f/etc",
    "x=$(git ls-files); rm -rf $x/etc",
    "x=build; g() { x=/ f; }; f() { rm -rf $x/etc; }; g",
    "g() { TMPDIR=/etc f; }; f() { echo > $TMPDIR/x; }; g",
)
SURE = (
    "x=build; rm -rf $x/a",
    "x=build && rm -rf $x/a",
    "cd src && x=build && rm -rf $x/a",
    "true && x=build && { rm -rf $x/a; }",
    "x=build || exit; rm -rf $x/a",
    "if [ -d a ]; then x=a; else x=b; fi; rm -rf $x/c",
    "if a; then x=a; elif b; then x=b; else x=c; fi; rm -rf $x/d",
    "if a; then x=build; rm -rf $x/a; fi",
    "for x in a b; do rm -rf $x/c; done",
    "for i in 1 2; do x=build; rm -rf $x/$i; done",
    "while read -r l; do x=build; rm -rf $x/a; done < f",
    "case a in b) x=build; rm -rf $x/a;; esac",
    "x=build; f() { rm -rf $x/a; }; f",
    "x=build; (cd src; rm -rf $x/a)",
    "x=build; echo $(rm -rf $x/a)",
    "x=build; if a; then y=1; fi; rm -rf $x/a",
    "export x=build y=a; rm -rf $x/$y",
    "sh -c 'export x=build; rm -rf $x/a'",
    "x=build; y=$x/a; rm -rf $y/b",
    "x=build; d=$PWD/$x; rm -rf $d/a",
    "[ -d build ] && x=build; rm -rf $x",
    "command",
    "x=1 builtin --",
)
NOT_CLOSED = ("fi; ls", "done; ls", "else ls", "if a; then b; done", "while a; do b; fi", "(fi)", "elif a")


@pytest.mark.parametrize("command", UNSURE)
def test_a_name_that_some_way_leaves_unset_is_not_taken_for_its_value(command: str) -> None:
    assert judge(command, workspace=WORKSPACE).decision == "deny"


@pytest.mark.parametrize("command", SURE)
def test_a_name_that_every_way_sets_is_its_value(command: str) -> None:
    assert judge(command, workspace=WORKSPACE) == ALLOWED


@pytest.mark.parametrize("command", NOT_CLOSED)
def test_what_closes_nothing_is_refused(command: str) -> None:
    assert judge(command).code == "E_CMD_PARSE"


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        ("a=1; b=2 && c=3; last", {"a", "b"}),
        ("a=1 && b=2 && last", {"a", "b"}),
        ("a=1 || b=2 || last", {"a"}),
        ("for a in x; do last; done", {"a"}),
        ("if a=1; then b=2; else b=3; fi; last", {"b"}),
        ("a=1 | b=2; last", set[str]()),
        ("a=$(x y); last", set[str]()),
    ],
)
def test_what_is_sure_is_noted_for_each_command(text: str, sure: set[str]) -> None:
    commands = read_script(text).commands
    assert next(one.sure for one in commands if one.words and one.words[0].text == "last") == sure


VALUES = (
    *("build", "a", "$x", "$y", "$x/b", "${x%d}", "${y#b}", "$(git ls-files)", "$((1))", ""),
    *("$(basename $x)", "$(dirname $y)", "${y:-b}", "$(false)"),
)
REMOVED = (
    *("$x/etc", '"$x/etc"', "$y/etc", "${x%d}/etc", "${x##*/}/etc", "${x:-b}/etc", "$x$y/etc", "b/$x", "$x"),
    *("$(dirname $x)/etc", "$(basename $y)/etc", "${x[@]}/etc", "${x#a}", "${x#*/}", "$y$x"),
)
SIMPLE = st.one_of(
    st.tuples(st.sampled_from("xy"), st.sampled_from(VALUES)).map("=".join),
    st.sampled_from(REMOVED).map("rm {}".format),
    st.sampled_from(["rm $x/etc", "rm $y/etc"]),
    st.sampled_from(
        [
            *(
                "x=build",
                "y=a",
                "true",
                "false",
                "unset x",
                "read x",
                "export x=b",
                "declare y=b",
                "x=(a b)",
                "f",
            ),
            *(
                "x=a true",
                "x=b rm $x/etc",
                "local x=b",
                "eval x=b",
                "x=$y y=b",
                "git ls-files",
                "xargs -I% rm %/etc",
            ),
        ]
    ),
)


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return commands made of other commands, in every way that decides whether those run, and where."""
    several = st.lists(st.tuples(inner, st.sampled_from(["; ", "\n", " && ", " || ", " & "])), max_size=2)
    lists = st.tuples(several, inner).map(lambda one: "".join(a + b for a, b in one[0]) + one[1])
    shapes = st.sampled_from(
        [
            *(
                "if true; then {}; else {}; fi",
                "if false; then {}; fi; {}",
                "if {}; then {}; elif true; then {}; fi",
            ),
            *(
                "for x in a b; do {}; done; {}",
                "for x in $y; do {}; done; {}",
                "for x in $(git ls-files); do {}; done",
            ),
            *(
                "while read x; do {}; done; {}",
                "until true; do {}; done; {}",
                "case a in a) {};; *) {};; esac; {}",
            ),
            *(
                "({}); {}",
                "{{ {}; }}; {}",
                "{{ {}; }} | {}",
                "! {}; {}",
                "{} | {}",
                "git ls-files | {}",
                "echo $({}); {}",
            ),
            *(
                "git ls-files | while read -r x; do {}; done; {}",
                "f() {{ {}; }}; {}",
                "cat <<A; {}\n$({})\nA\n{}",
            ),
        ]
    )
    return st.tuples(shapes, lists, lists, lists).map(lambda one: one[0].format(*one[1:]))


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``bin`` has an ``rm`` that only writes down what it is given, and a ``git`` with two files."""
    folder = tmp_path_factory.mktemp("stubs")
    for name in ("bin", "here"):
        (folder / name).mkdir()
    for name, text in (
        ("rm", f'for one; do echo "$one" >> {shlex.quote(str(folder / "removed"))}; done'),
        ("git", "printf 'a.py\\nsub/b.py\\n'"),
    ):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    for name in ("dirname", "basename", "xargs", "cat"):
        (folder / "bin" / name).symlink_to(shutil.which(name) or name)
    return folder


@pytest.mark.parametrize("shell", ["bash", "sh"])
@given(text=st.recursive(SIMPLE, compound, max_leaves=9))
@examples(100, suppress=list(HealthCheck))
def test_no_shell_removes_by_an_allowed_line_what_is_outside(shell: str, stubs: Path, text: str) -> None:
    asked = text if shell == "bash" else f"sh -c {shlex.quote(text)}"
    if "rm" not in text or judge(asked, workspace=WORKSPACE).decision == "deny":
        return
    program, removed = shutil.which(shell), stubs / "removed"
    assert program is not None
    removed.unlink(missing_ok=True)
    subprocess.run(
        [program, "-c", text],
        env={"PATH": str(stubs / "bin")},
        cwd=stubs / "here",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    for path in removed.read_text().splitlines() if removed.exists() else ():
        assert not path.startswith("/"), text
        assert ".." not in path.split("/"), text
