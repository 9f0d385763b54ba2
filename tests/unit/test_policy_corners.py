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
        "git init /outside",
        "git init -q ../x",
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
        "find / $x",
        "find / -$x",
        "find . -${HOME:+delete}",
        'f(){ find "$@"; }; f / -delete',
        "find * -name x",
        "x='a -delete'; find / -name $x",
        "find . -name x -exec ls ${HOME:+; -delete} \\;",
        "echo x < ${HOME:+/dev/tcp/127.0.0.1/1} >&0",
        "git reset -${HOME:+-hard}",
        "git commit -${HOME:+-amend}",
        "git grep -n${HOME:+Otouch} x",
        "dd if=$x of=y",
        "xargs --replace=X rm -rf X",
        f"x={LONG}{LONG}; rm -rf $x",
        f"x={LONG}; rm -rf $x/$x",
        f"for x in {MANY}; do for y in {MANY}; do rm -rf $x$y; done; done",
    ),
    "E_CMD_PIPE_TO_SHELL": ("bash -- /dev/stdin", "bash --norc -"),
    "E_GIT_OPTION": (
        "git init --template=t",
        "git init --separate-git-dir=/tmp/x",
        "git reflog show -1 --format=%H --output .git/x",
        "git stash show --outp README.md",
        "git diff --output f",
        "git apply --directory=/x a.patch",
    ),
    "E_GIT_DISCARD": (
        "git reset --har{d..d}",
        "git switch --force-create NAME REV",
        "git checkout -- ':!x'",
        "git restore ':^x'",
        "git rm -rf ':!x'",
        "git checkout -- '?*'",
        "git clean -fdx -e -n",
        "git clean -fdxen",
        "git clean -fd -n --no-dry-run",
        "git rm -rf --cached --no-cached .",
        "git restore --staged --no-staged .",
        "git checkout -b -- -f",
        "git restore --pathspec-from-file=x",
    ),
    "E_CMD_PARSE": (
        "read 'a[$(touch m)]' <<< x",
        "test -v 'a[$(touch m)]'",
        "[[ -v 'a[$(touch m)]' ]]",
        "[[ 'a[$(touch m)]' -eq 0 ]]",
        "for x in 'a[$(touch m)]'; do echo $((x)); done",
        "x='a[$(touch m)]'; echo ${!x}",
        "echo ${!x}",
        "let 'a[$(touch m)]=1'",
        "declare 'a[$(touch m)]=1'",
        "printf -v 'a[$(touch m)]' x",
        "i='$(touch m)'; printf -v \"a[$i]\" x",
        "unset 'a[$(touch m)]'",
        'builtin test -v "a[\\$(touch m)]"',
        "x+='a[$(touch m)]'",
        "a['$(touch m)']=1",
        "a=(['$(touch m)']=1)",
        "echo ${a['$(touch m)']}",
        "echo ${x:'$(touch m)'}",
        "echo $((${x:-a[\\$(touch m)]}))",
        "x='a['; y='$(touch m)]'; echo $(($x$y))",
        "f(){ echo $(($1)); }; f 'a[$(touch m)]'",
        "f(){ read \"$1\"; }; f 'a[$(touch m)]'",
        "while read x; do echo $((x)); done <<< 'a[$(touch m)]'",
        "echo 'a[$(touch m)]' | while read x; do echo $((x)); done",
        "bash -c 'echo $(($1))' x 'a[$(touch m)]'",
        "echo {a..Z}",
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
    "E_PATH_PROTECTED": (
        "echo a > .g{i..i}t/x",
        "rm -rf .g{i..i}t",
        "git log -1 --outpu{t..t}=.git/x",
        "git mv f .mcp.json",
        "git rm .env",
    ),
    "E_LIMIT_COMMAND": (
        "echo {1..1000}",
        "echo {1..9}{1..9}",
    ),
    "E_CMD_NETWORK": (
        "cat < /dev/../dev/tcp/h/1",
        "cat < //dev/tcp/h/1",
        "x=/dev/tcp/a/1; cat < $x",
    ),
    "E_CMD_ENVIRONMENT": (
        "read GIT_DIR",
        "read -aGIT_DIR",
        "read 'GIT_DIR[0]'",
        "printf -v GIT_DIR x",
        "mapfile GIT_DIR",
        "for GIT_DIR in x; do ls; done",
        ": ${GIT_DIR:=x}",
    ),
    "E_GIT_COMMAND": ("git remote -v add ro /tmp/x",),
    "E_GIT_RUNS": (
        "git grep -nOtouch pat",
        "git grep -e -- -Otouch pat",
    ),
    "E_GIT_HISTORY": (
        "git pull --reba",
        "git commit -m -- --amend",
    ),
}
ALLOWED_TEXTS: Final = (
    "for i in {1..10}; do echo $i; done",
    "for i in {01..10..3} {a..c}; do echo $i; done",
    "echo {a,{1..3}}",
    'for i in "${!a[@]}"; do echo "${a[$i]} ${a[i+1]}"; done',
    'a[$i]=1; a=(x "$y"); echo ${m["k"]} ${x:1:2} ${a[${#a[@]}-1]}',
    "[[ $x =~ ^[a-z]+[0-9]$ && $n -gt 1 ]] && awk '{print $(NF-1)}' f",
    "git commit -m 'arr[$i] and `x`'",
    "grep 'a[$b]' f",
    "printf '%s[$x]' a",
    "PS1='$(git_branch)$ '",
    'local_x="a[$i]"; echo "$local_x"',
    'find . -name "$x"',
    'find . -name "*.$ext" -type f',
    'find "$PWD" -name x',
    "d=src; find $d -name x",
    'find . -name x -exec grep "$y" {} +',
    'while read l; do echo "$l"; done < "$file"',
    'while read l; do echo "$l"; done < <(ls)',
    "git init",
    "git init -q -b main sub",
    "git switch -c x",
    "git pull --no-rebase",
    "git checkout -",
    'git checkout -- "$f"',
    'git restore --staged -- "$f"',
    "git clean -ndx -e x",
    "git clean --dry-run -fd",
    "git rm --cached .env",
    "git rm x",
    "git rm -n -r .",
    "git remote",
    "git remote show origin",
    "bash -c 'echo \"${a[$i]}\"' x",
    "git grep -n pat",
    'git commit -m"$x"',
    'git log -n$N --format="$f"',
    "git stash show --output=README.md",
    "git fsck --lost-found",
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
READING: Final = (
    "for i in {1..3}; do echo $i; done",
    "for f in *.py; do head -1 < $f; done",
    'while IFS= read -r line; do echo "$line"; done',
    'while read l; do echo "$l"; done < <(ls)',
    "git diff -- *.py",
    'git diff -- "$f"',
    "git remote -v",
    "git grep -n pat",
    "rg 'a*' src",
    "sort a*.txt",
    "find . -name '*.py'",
    "sed -n 1,2p a.py",
    "git stash show",
)
NOT_READING: Final = (
    "git log -1 -${HOME:+-output=F}",
    "sort -${HOME:+oF} f",
    "sort a${HOME:+ -oF}",
    "sort *.txt",
    "sort -k -- $x",
    "sed -n 2p ${HOME:+-i} f",
    "find . -name $x",
    "git log -1 --outpu{t..t}=F",
    "git stash show --output=README.md",
    "git fsck --lost-found",
    "git log *.py",
    "cat < $x",
    "for PATH in sub; do ls; done",
    "read PATH",
    "read GIT_DIR",
    "echo ${PATH:=x}",
)


@pytest.mark.parametrize(("code", "command"), [(code, row) for code, rows in DENIED.items() for row in rows])
def test_what_is_denied_stays_denied_however_rarely_it_is_written_so(code: str, command: str) -> None:
    verdict = judge(command, workspace=WORKSPACE)
    assert (verdict.decision, verdict.code) == ("deny", code), verdict.reason


@pytest.mark.parametrize("command", ALLOWED_TEXTS)
def test_what_is_harmless_stays_allowed_however_rarely_it_is_written_so(command: str) -> None:
    assert judge(command, workspace=WORKSPACE) == ALLOWED


@pytest.mark.parametrize("command", READING)
def test_a_session_that_only_reads_may_read_however_rarely_it_is_written_so(command: str) -> None:
    assert judge_read_only(command, workspace=WORKSPACE) == ALLOWED


@pytest.mark.parametrize("command", NOT_READING)
def test_a_session_that_only_reads_does_nothing_else_however_rarely_it_is_written_so(command: str) -> None:
    verdict = judge_read_only(command, workspace=WORKSPACE)
    assert verdict.decision == "deny"
    assert verdict.code != "E_CMD_JUDGE"


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
