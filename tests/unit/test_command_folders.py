"""Where a command line stands when it writes: in what is protected, out of the workspace, or nobody knows where."""

from __future__ import annotations

import pytest
from command_table import WORKSPACE

from policy.commands import ALLOWED, judge, judge_read_only

PROTECTED = (
    "cd .git && echo x > config",
    "cd .claude && echo x > settings.json",
    "cd .claude; echo x > settings.json",
    "cd ./src/../.git && echo x > config",
    "cd -P .git && touch config",
    "cd -- .git && touch config",
    "cd src && cd .git && touch config",
    "cd /ws/.git && rm config",
    'cd "$PWD/.git" && cp /tmp/x config',
    'cd "${PWD}/.git/hooks" && mv x pre-commit',
    "cd '.git' && sed -i s/a/b/ config",
    "cd .gi? && echo x > config",
    "cd .gi[^a] && echo x > config",
    "cd .gi[[:alpha:]] && echo x > config",
    "cd .git/hooks && curl -O http://x/pre-commit",
    "cd .git && tar xf ../x.tar",
    "cd .git && patch -p0 < ../x.patch",
    "cd .git && make",
    "cd .git && python3 -c 1",
    "cd .git && bash -c 'echo x > config'",
    "cd .vscode && npm install",
    "pushd .git && echo x > config",
    "pushd -n .git; echo x > config",
    "pushd .git; pushd; ls > /ws/config",
    "builtin cd .git && echo x > config",
    "command cd .git && echo x > config",
    "command -p cd .git && echo x > config",
    "builtin pushd .git && echo x > config",
    "(cd .git && echo x > config)",
    "{ cd .git; echo x > config; }",
    "if cd .git; then echo x > config; fi",
    "f() { cd .git; }; f; echo x > config",
    "echo $(cd .git && echo x > config)",
    "bash -c 'cd .git && echo x > config'",
    "bash -c 'cd .git; bash -c \"echo x > config\"'",
    "eval 'cd .git'; echo x > config",
    "eval cd .git; echo x > config",
    "trap 'cd .git' DEBUG; echo x > config",
    "d=.git; cd $d && echo x > config",
    'd=.git; cd "$d/hooks" && echo x > pre-commit',
    "for d in src .git; do cd $d; echo x > config; done",
    "d='-P .git'; cd $d && echo x > config",
    "cd /tmp/x/.git && echo x > config",
    "echo x > .gi[^a]/config",
    "rm -rf .gi[[:alpha:]]",
    "x='.g?\\\\t'; rm -rf $x",
    "cd src && echo x > ../.git/config",
)
UNKNOWN = (
    "cd $X && echo x > config",
    'cd "$(echo .git)" && echo x > config',
    'cd "$1" && touch config',
    "cd - && echo x > config",
    "cd && echo x > .bashrc",
    "builtin cd /etc && echo x > passwd",
    "command cd .. && echo x > y",
    "eval 'cd /etc'; echo x > passwd",
    "trap 'cd /etc' DEBUG; echo x > passwd",
    "popd; echo x > y",
    "cd ~+/.git && echo x > config",
    "cd /tmp && echo x > ../etc/passwd",
    "cd /tmp/.. && echo x > etc/passwd",
    "cd /tmp && cd .. && echo x > etc/passwd",
    "cd /etc; echo x > $PWD/passwd",
    "cd 'a b'; echo x > $PWD/y; cd /etc",
    "cd web; cd .. && echo x > y",
    "cd web || true && cd .. && echo x > y",
    "cd web && make; cd .. && echo x > y",
    "cd web & cd .. && echo x > y",
    "cd web | cat && cd .. && echo x > y",
    "(cd web) && cd .. && echo x > y",
    "! cd web && cd .. && echo x > y",
    "false && cd web\ncd .. && echo x > y",
    "echo '&&' && cd web; cd .. && echo x > y",
    "cd web && cd ../.. && echo x > y",
    "cd web && echo x > ../../y",
    "cd web && cd a && cd ../../.. && echo x > y",
    "cd web && echo x > $PWD/../y",
    "cd web && bash -c 'cd ..; cd ..; echo x > y'",
    "cd web && bash -c 'cd .. && cd .. && echo x > y'",
    "cd web && eval 'cd ..' && echo x > ../y",
    "cd web && pushd .. && echo x > ../y",
    "cd web > /tmp/a && cd .. && echo x > y",
    "cd ~ && echo x > ../y",
    "cd web && tar -xf a.tar -C .. -C ..",
    "cd web && patch -d .. ../x a.patch",
    "cd web && rsync -ab --backup-dir=../y a/ ../",
    "cd src && cd ../.git && echo x > config",
)
HONEST = (
    "cd .git && ls",
    "cd .git && cat HEAD && git status",
    "(cd .claude && cat settings.json | head -3)",
    "cd .github && echo x > workflows/ci.yml",
    "cd .gitlab && touch x",
    "cd src && echo x > y",
    "cd src && touch a && sed -i s/a/b/ c",
    "cd ./src/a && make && cp a b",
    "pushd src && make",
    "cat .git/HEAD; ls .git; echo x > y",
    "cd /tmp && echo x > y",
    "cd /tmp/x && tar xzf y.tgz && touch z",
    'cd "$TMPDIR" && echo x > y',
    "cd src && rm -rf $PWD/build",
    "cd $X && make",
    'cd "$(git rev-parse --show-toplevel)" && pytest',
    "shopt -s globstar nullglob; ls **/*.py",
    "shopt -u dotglob",
    "cd web && npm ci && cd .. && rm -rf build",
    "cd frontend && npm run build && cp -r dist ../static",
    "cd src && rm -f ../build/x.o",
    "cd web && npm ci 2>&1 | tail -5 && cd .. && touch a",
    "cd a/b && cd ../.. && touch x",
    "cd a/b && echo x > ../../c",
)


@pytest.mark.parametrize("command", PROTECTED)
def test_nothing_is_written_from_within_what_is_protected(command: str) -> None:
    verdict = judge(command, workspace=WORKSPACE)
    assert (verdict.decision, verdict.code) == ("deny", "E_PATH_PROTECTED"), verdict.reason
    assert judge_read_only(command, workspace=WORKSPACE).decision == "deny"


@pytest.mark.parametrize("command", UNKNOWN)
def test_nothing_is_written_where_nobody_knows_where(command: str) -> None:
    assert judge(command, workspace=WORKSPACE).code in {"E_CMD_OUTSIDE", "E_CMD_DYNAMIC"}


@pytest.mark.parametrize(
    "command",
    [
        "shopt -s dotglob; rm -rf ?git",
        "shopt -s cdable_vars; d=.git; cd d && touch x",
        "shopt $x dotglob",
        "GLOBIGNORE=x; rm -rf ?git",
    ],
)
def test_nothing_changes_what_patterns_and_folders_mean(command: str) -> None:
    assert judge(command, workspace=WORKSPACE).decision == "deny"


@pytest.mark.parametrize("command", HONEST)
def test_a_change_of_folder_keeps_nobody_from_work(command: str) -> None:
    assert judge(command, workspace=WORKSPACE) == ALLOWED
