"""What names are worth where a command line sets them in other ways than by a plain assignment."""

from __future__ import annotations

import pytest
from command_table import WORKSPACE

from policy.commands import ALLOWED, judge, judge_read_only

SETTERS = (
    "printf -v x /",
    "printf -vx /",
    "builtin printf -v x /",
    "o=-vx; printf $o /",
    "printf $o /",
    "read x < file",
    "builtin read x < file",
    "command read -r x < file",
    "read -rax < file",
    "o=-ax; read $o < file",
    "read -a x < file",
    "read $y < file",
    "mapfile x < file",
    "mapfile -t x < file",
    "readarray -t -- x < file",
    "getopts ab x",
    "declare -n r=x; r=/",
    "declare -gn r=x; r=/",
    "typeset -n r=x; r=/",
    "f() { local -n r=x; r=/; }; f",
    "declare -u x",
    "declare -i x",
    "declare $y",
    'export "x=/"',
    'export x"=/"',
    "export {x,y}=/",
    "export x={a,/}",
    "export $y",
    'export "$y=$z"',
    "command export x=/",
    "builtin declare x=/",
    "builtin readonly 'x=/'",
    "unset x",
    "builtin unset x",
    "unset $y",
    "wait -n -p x",
    "let x=1",
    "x+=/..",
    "exec {x}>file",
    ": ${x:=/}",
    "eval x=/",
    "builtin eval x=/",
    "trap x=/ DEBUG",
    "source file",
    "while read -r x; do rm -rf $x; done < file",
    "IFS=b",
    "read IFS < file",
    'f() { read "$1"; }; f x',
)
OWN = (
    "_",
    "REPLY",
    "MAPFILE",
    "OPTARG",
    "BASH_REMATCH",
    "RANDOM",
    "LINENO",
    "PIPESTATUS",
    "DIRSTACK",
    "PPID",
)
GIVEN = (
    "read TMPDIR < file; echo x > $TMPDIR/y",
    "builtin read TMPDIR < file; echo x > $TMPDIR/y",
    "TMPDIR=$(cat file); echo x > $TMPDIR/y",
    "export TMPDIR=$X; echo x > $TMPDIR/y",
    'export "TMPDIR=/etc"; echo x > $TMPDIR/y',
    "printf -v TMPDIR /etc; echo x > $TMPDIR/y",
    "declare -n r=TMPDIR; r=/etc; echo x > $TMPDIR/y",
    "mapfile TMPDIR < file; echo x > $TMPDIR/y",
    "eval TMPDIR=/etc; echo x > $TMPDIR/y",
    "eval 'read TMPDIR < file'; echo x > $TMPDIR/y",
    "TMPDIR=/etc; eval 'echo x > $TMPDIR/y'",
    "TMPDIR=/etc bash -c 'echo x > $TMPDIR/y'",
    "env TMPDIR=/etc bash -c 'echo x > $TMPDIR/y'",
    "export TMPDIR=/etc; bash -c 'echo x > $TMPDIR/y'",
    "bash -c \"TMPDIR=/etc bash -c 'echo x > \\$TMPDIR/y'\"",
    "PWD=$(cat file); echo x > $PWD/y",
    "PWD=/ws/a; cd src; echo x > $PWD/y",
    "PWD=/etc; echo x > $(pwd)/y",
    "pwd() { echo /etc; }; echo x > $(pwd)/y",
    "((TMPDIR=1)); echo x > $TMPDIR/y",
    "echo $((TMPDIR+=1)); echo x > $TMPDIR/y",
    "((TMPDIR++)); echo x > $TMPDIR/y",
    "let TMPDIR=1; echo x > $TMPDIR/y",
    "read PWD < file; rm -rf $PWD/build",
    'read -p x "$y" < file; echo x > $TMPDIR/y',
    "for TMPDIR in $X; do echo x > $TMPDIR/y; done",
    ": ${TMPDIR:=/etc}; echo x > $TMPDIR/y",
)
HONEST = (
    't=$(mktemp -d); trap \'rm -rf "$t"\' EXIT; cp a "$t/"',
    'd=build; trap \'rm -f "$d"\' EXIT INT; touch "$d"',
    "trap - EXIT; x=build; rm -rf $x",
    'tmp=$(mktemp -d); cp a "$tmp/a.txt"; rm -f "$tmp/a.txt"',
    'rm -rf "${TMPDIR:-/tmp}/x"',
    "mv a.txt /tmp/",
    "cp a b /tmp",
    "x=build; rm -rf $x/a",
    "x=build; read y < file; rm -rf $x",
    "x=build; printf -v y %s a; rm -rf $x",
    "x=build; export A=1 B; rm -rf $x",
    "x=build; export -n A; rm -rf $x",
    "export x=build; rm -rf $x",
    "declare -r x=build; rm -rf $x",
    "x=build; unset y; rm -rf $x",
    "x=build && rm -rf $x/a",
    "cd src && x=build && rm -rf $x/a",
    "if [ -d a ]; then x=a; else x=b; fi; rm -rf $x/c",
    "for x in a b; do rm -rf $x/c; done",
    "x=build; f() { rm -rf $x/a; }; f",
    "export x=build y=1; rm -rf $x/a",
    'x=build; read -rp "Enter $q: " y; rm -rf $x',
    'x=build; make & wait "$!"; rm -rf $x',
    "x=build; printf '%s\\n' $x; rm -rf $x",
    "TMPDIR=/tmp/a; echo x > $TMPDIR/y",
    "export TMPDIR=/tmp/a && echo x > $TMPDIR/y",
    "read -r line < file; echo x > $TMPDIR/y",
    "source .venv/bin/activate && ls > $TMPDIR/x",
    "trap 'rm -f build/x' EXIT; ls > $TMPDIR/x",
    'while IFS= read -r l; do echo "$l" >> $TMPDIR/x; done < file',
    'bash "$PWD/x.sh"',
    "bash ${PWD}/scripts/x.sh --fast",
    'bash -x "$HOME/x.sh"',
    'cd src && bash "$PWD/x.sh"',
    'd=scripts; bash "$d/x.sh"',
    "T=5; timeout $T pytest",
    "T=5 && timeout $T pytest",
    'T=5\ntimeout "${T}s" pytest',
    "export T=5; timeout -k $T 10 pytest",
    "N=4; nice -n $N make",
    "for i in {1..100}; do echo $i; done",
    "for i in {001..500}; do touch f$i; done",
    "mkdir -p d{1..100}",
)
UNSURE = (
    "t=a; trap 'rm -rf \"$t\"' EXIT; t=/etc",
    "t=a; trap 'rm -rf \"$t/etc\"' EXIT",
    "t=a; trap 'rm -rf \"$t\"' EXIT; read t",
    "t=a; trap 't=/etc; rm -rf \"$t\"' EXIT",
    "t=a; trap 't=/etc' DEBUG; rm -rf \"$t\"",
    "t=a; trap 'read t' DEBUG; rm -rf \"$t\"",
    't=a; trap \'eval "$x"\' DEBUG; rm -rf "$t"',
    "trap 'rm -rf \"$t\"' EXIT",
    't=$(mktemp -d); rm -rf "$t/../x"',
    't=$(mktemp -d); rm -rf "$t/etc"',
    't=$(mktemp -d); rm -rf "$t/e*"',
    'rm -rf "${TMPDIR:-/tmp}"',
    'rm -rf "${TMPDIR:-/tmp}/../x"',
    'rm -rf "$TMPDIR/x"',
    'bash "$X/x.sh"',
    "bash $X",
    "bash $PWD",
    "bash ${PWD}x.sh",
    "PWD=-c; bash $PWD/x.sh",
    "read PWD < f; bash $PWD/x.sh",
    "cd 'x -c reboot'; bash $PWD/x.sh",
    'cd "$X"; bash $PWD/x.sh',
    "bash $PWD/$X",
    "bash $PWD/*",
    "rm -rf $x/*; x=build",
    "x=build rm -rf $x/*",
    "x=build true; rm -rf $x/*",
    "env x=build rm -rf $x/*",
    "f() { rm -rf $x/*; }; f; x=build",
    "echo y > $x/etc/z; x=build",
    "export x=build > $x/etc/z",
    "timeout $T 5 sudo id; T=5",
    "false && T=5; timeout $T 5 sudo id",
    "true || T=5; timeout $T 5 sudo id",
    "T=5 | cat; timeout $T 5 sudo id",
    "T=5 & timeout $T 5 sudo id",
    "(T=5); timeout $T 5 sudo id",
    "T=5 true; timeout $T 5 sudo id",
    "echo $(T=5); timeout $T 5 sudo id",
    "if false; then T=5; fi; timeout $T 5 sudo id",
    "while false; do T=5; done; timeout $T 5 sudo id",
    "for x in $y; do T=5; done; timeout $T 5 sudo id",
    "case x in y) T=5;; esac; timeout $T 5 sudo id",
    "f() { T=5; }; timeout $T 5 sudo id",
    "local T=5; timeout $T 5 sudo id",
    "export -f T=5; timeout $T 5 sudo id",
    "T=5 > /tmp/a/b; timeout $T 5 sudo id",
    "T=5 U=${x?}; timeout $T 5 sudo id",
    "T=5; T=6; timeout $T pytest",
    "T=5; read T < f; timeout $T pytest",
    "readonly T; T=5; timeout $T 5 sudo id",
    "T=; timeout $T 5 sudo id",
    "T='5 sudo'; timeout $T id",
    "T=*; timeout $T id",
    "f() { timeout $T 5 sudo id; }; f; T=5",
    "cat <<A; T=5\n$(timeout $T 5 sudo id)\nA",
    "for i in {1..100}; do timeout $i id; done",
    "rm -rf /{1..100}",
    "rm -rf ../x{1..100}",
    "kill -9 {-50..50}",
    "echo x > f{1..100}",
    "{1..100} x",
)


@pytest.mark.parametrize("setter", SETTERS)
def test_a_value_that_something_may_have_replaced_is_not_known(setter: str) -> None:
    command = f"x=build; {setter}; rm -rf $x"
    assert judge(command, workspace=WORKSPACE).decision == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "read PAGER < f", "builtin read -r PAGER < f", "read -raPAGER < f", "read -p x PAGER", "mapfile -n 1 PAGER < f",
        "command printf -v PAGER x", "printf -vPAGER x", "getopts a PAGER", "wait -np PAGER", "let PAGER=1",
        "exec {BASH_ENV}>f", "eval 'read PAGER < f'", "trap 'read PAGER < f' EXIT", "bash -c 'read PAGER < f'",
    ],
)  # fmt: skip
def test_no_builtin_sets_what_decides_what_other_programs_run(command: str) -> None:
    assert judge(command, workspace=WORKSPACE).code == "E_CMD_ENVIRONMENT"
    assert judge_read_only(command, workspace=WORKSPACE).decision == "deny"


@pytest.mark.parametrize("name", OWN)
def test_what_a_shell_sets_by_itself_is_never_known(name: str) -> None:
    assert judge(f"{name}=build; rm -rf ${name}", workspace=WORKSPACE).decision == "deny"


@pytest.mark.parametrize("command", [*GIVEN, *UNSURE])
def test_what_is_not_certain_is_not_taken_for_a_value(command: str) -> None:
    assert judge(command, workspace=WORKSPACE).decision == "deny"


@pytest.mark.parametrize("command", HONEST)
def test_what_is_certain_is_judged_as_the_value(command: str) -> None:
    assert judge(command, workspace=WORKSPACE) == ALLOWED


@pytest.mark.parametrize("count", [513, 100_000])
def test_a_sequence_that_would_fill_the_memory_is_refused(count: int) -> None:
    assert judge(f"for i in {{1..{count}}}; do echo $i; done").code == "E_LIMIT_COMMAND"
    assert judge("echo {1..100}{1..100}").code == "E_LIMIT_COMMAND"
