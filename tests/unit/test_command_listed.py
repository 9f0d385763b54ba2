"""Names of files that lines take from elsewhere: what lists the workspace's files is known, anything else is refused."""

from __future__ import annotations

import pytest
from command_table import WORKSPACE

from policy.commands import ALLOWED, judge

WRITERS = (
    'touch "{}"',
    'mkdir -p "{}"',
    'chmod +x "{}"',
    'sed -i s/a/b/ "{}"',
    'gzip "{}"',
    'black "{}"',
    'perl -pi -e s/a/b/ "{}"',
    'yq -i .a=1 "{}"',
    'mv "{}" x',
    'mv a "{}"',
    'cp a "{}"',
    'rm "{}"',
    'tee "{}"',
    'echo x > "{}"',
    'pip install -t "{}" x',
    'tar -cf "{}" a',
    'tar -cf a.tar --remove-files "{}"',
    'tar -xf a.tar -C "{}"',
    'unzip a.zip -d "{}"',
    'zip "{}" a',
    'sort -o "{}" a',
    'sort -T "{}" a',
    'curl -o "{}" http://x',
    'wget -O "{}" http://x',
    'rsync -a a/ "{}"',
    'ln -s a "{}"',
    'install a "{}"',
    'truncate -s 0 "{}"',
    'git mv a "{}"',
    'python3 -m zipfile -e a.zip "{}"',
)
UNKNOWN = (
    "$x",
    "$1",
    "$(cat list)",
    "$(echo .git/config)",
    "${x:-$y}",
    "${!x[@]}",
    "${x/a/b}",
    "a/$x",
    "${x[0]}",
    "${x[@]}",
    "${x%.c}",
    "$(dirname $x)",
)
KNOWN = (
    "$PWD/a",
    "$(pwd)/a",
    "${PWD}/a b",
    "$(dirname src/a/b.py)/c",
    "$(basename src/a.py .py).txt",
    "src/$(date +%F)",
    "a-$(date -u +%Y%m%d_%H%M%S)",
    "a-$(git rev-parse --short HEAD)",
    "a$((1 + 2))",
    "a$$",
    "a${#x}",
    "$(git rev-parse --show-toplevel)/a",
)
LISTS = (
    "git ls-files '*.py'",
    "git --no-pager ls-files -m -o --exclude-standard",
    "git diff --name-only HEAD~1",
    "git grep -l foo -- src",
    "rg -l foo",
    "rg -lF -e foo -g '*.py' src",
    "rg --files src | head -5",
    "rg -l foo -g 'src/**' -g '!vendor' -g '*.{js,ts}'",
    "grep -rl --include='*.py' --include='*.pyi' foo .",
    "find . -path ./.git -prune -o -name '*.py' -print",
    "find . -type f ! -path '*/.git/*' ! -name '*.min.js'",
    "grep -rl foo src tests",
    "grep -rlE --include='*.py' foo .",
    "grep -rl --exclude-dir=.git foo",
    "find src -type f",
    "find . -name '*.py'",
    "find . -type f -not -path './.git/*'",
    "find . -path ./.git -prune -o -type f -print",
    "fd -e py",
    "ls *.py",
    "ls -t src/*.c | head -1",
    "git ls-files | grep -v vendor | sort -u | uniq | tail -n 3",
    "LC_ALL=C git ls-files 2>/dev/null",
)
NO_LISTS = (
    "cat list",
    "echo .git/config",
    "printf '%s\\n' .git/config",
    "find . -type f",
    "find . -name config",
    "find . -name '*'",
    "find . -path './.git/*' -name 'x*'",
    "find . -name x -o -type f",
    "find . -type f -not -name .git",
    "find . -type f -not -path './.git/objects/*'",
    "find . -path ./.git -prune -o -type f",
    "find . -path ./.git/objects -prune -o -type f -print",
    "find . -name logs",
    "grep -rl foo --include='*.md' --include='*' .",
    "grep -rl foo . --include='.env'",
    "grep -rl foo . --include='*.env'",
    "grep -rl foo src --include='.e*'",
    "rg -l KEY -g '.env'",
    "rg -l KEY -g '**/.env'",
    "rg -l KEY --iglob='.ENV'",
    "rg -l KEY -g '*'",
    'rg -l KEY -g "$x"',
    "git ls-files .env",
    "git grep -l KEY -- .claude",
    "find .. -name '*.py'",
    "find / -name '*.py'",
    "find .git -name x",
    'find "$d" -name x',
    "find src -printf /etc/x",
    "find src -exec echo .git/config \\;",
    "grep -rl foo .",
    "grep -rl foo",
    "grep -rl foo .git",
    "grep -rl foo ../x",
    "grep -rl foo /etc",
    "grep -rh foo src",
    "grep -l foo --label=.git/config",
    "rg -l --hidden foo",
    "rg -luu foo",
    "rg -l foo /etc",
    "rg foo",
    "fd -H x",
    "fd -x echo .git/config",
    "ls -a",
    "ls /etc",
    "git ls-files --format=.git/config",
    "git diff --name-only --no-index /etc x",
    "git diff --name-only /etc/passwd /etc/hosts",
    "git grep -l --no-index x",
    "git diff --name-only ../x ../y",
    'find . -name "$x"',
    "wc -l --files0-from=list",
    "git diff",
    "git grep foo",
    "git ls-files | sed s,.*,.git/config,",
    "git ls-files | awk '{print \".git/\" $1}'",
    "git ls-files | cat list -",
    "git ls-files | head -1 list",
    "git ls-files | grep x list",
    "git ls-files | grep -o x",
    "git ls-files | sort -o x",
    "git ls-files |& cat",
    "git ls-files < list | head < list",
    "git ls-files; cat list",
    "PATH=x git ls-files",
    "(git ls-files)",
)
PARTS = (
    'for f in *.txt; do mv "$f" "${f%.txt}.md"; done',
    'for f in src/*.c; do touch "build/$(basename "$f" .c).o"; done',
    'for f in src/*.c; do touch "build/${f##*/}"; mkdir -p "$(dirname "$f")/x"; done',
    'files=(src/*.py a.txt); for f in "${files[@]}"; do sed -i s/a/b/ "$f"; done',
    'files=(a); files+=(b c); touch "${files[@]}"',
    'echo x > "${TMPDIR:-/tmp}/a"',
    'rsync -a a/ "${TMPDIR:-/tmp}/a"',
    'd=$PWD/build; mkdir -p "$d" && touch "$d/x"',
    "x=$(find . -name '*.orig'); rm -f \"$x\"",
    "find . -name '*.orig' | xargs rm -f",
    "find . -name '*.orig' -print0 | xargs -0 -I{} mv {} {}.old",
    "for f in $(find . -name '*.orig'); do rm \"$f\"; done",
    "n=$(nproc); touch f$n",
    "n=$(ls | wc -l); touch f$n",
    'd=$(mktemp -d); cp a "$d/"; rm -rf "$d"',
    'd=$(mktemp -d /tmp/x.XXXX) && cd "$d" && touch a',
    'f=$(mktemp -t x.XXXX); echo a > "$f"; mv "$f" b',
)
BAD_PARTS = (
    "for f in .git/*; do touch $f; done",
    'for f in *; do touch ".$f/config"; done',
    'for f in a.git; do touch "${f#a}/config"; done',
    'for f in x/etc; do touch "${f#x}/y"; done',
    'for f in .github; do touch "${f%hub}/config"; done',
    'for f in /etc/*; do touch "${f%x}"; done',
    'for f in x/.git; do touch "$(basename $f)/config"; done',
    'for f in $(git ls-files); do touch ".git/$f"; done',
    'for f in $(git ls-files); do touch "../$f"; done',
    'for f in $(git ls-files); do rm "$f"; done',
    "git ls-files | xargs rm",
    "git ls-files | xargs -I{} cp {} .git/{}",
    "git ls-files | xargs -I{} touch ../{}",
    "git ls-files | xargs -a list touch",
    "a=(b); a=/; touch ${a[@]}/etc",
    'files=(.git/x); touch "${files[@]}"',
    'files=(a); files[1]=.git/x; touch "${files[@]}"',
    'files=(a); files+=(.git/x); touch "${files[@]}"',
    'files=(a); mapfile files < list; touch "${files[@]}"',
    'files=($(cat list)); touch "${files[@]}"',
    'touch "${TMPDIR:-/etc}/x"',
    'touch "${x:-.git/x}"',
    'rm -rf "$(mktemp -d)/"*',
    'd=$(mktemp -d); rm -rf "$d"/*',
    'TMPDIR=/etc; d=$(mktemp -d); rm -rf "$d"',
    'touch "$(mktemp -p .git)"',
    'touch "$(mktemp x.XXXX)"',
    "touch $(date +.git/%F)",
    "touch $(date)",
    "touch $(seq -f .git/x%g 1)",
    "touch $(git rev-parse a/../.git/hooks/x)",
    "touch $(git rev-parse --git-path hooks/x)",
    'touch "$(git rev-parse --show-toplevel)/.git/x"',
    'rm -rf "$(git rev-parse --show-toplevel)"',
    'rm -rf "$(git rev-parse --short HEAD)/etc"',
    "touch $(dirname .git/hooks/x)/y",
    "if false; then x=build; fi; rm $(dirname $x)/etc",
    'rm -rf "$(seq 5 1)/etc"',
    "n=$(date +%Y); rm -rf $n/etc",
    "touch $(basename .git)/x",
    "dirname() { echo .git; }; touch $(dirname a)/x",
    "git() { echo .git/config; }; git ls-files | xargs touch",
    "env A=$(git ls-files) make",
    'git ls-files | while read -r f; do read -r f; touch "$f"; done',
    'while read -r f; do touch "$f"; done < list',
    'git ls-files | while read -r f g; do touch "$g"; done',
)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_name_that_is_only_known_when_it_runs_is_nowhere_written(writer: str) -> None:
    for name in UNKNOWN:
        verdict = judge(writer.format(name), workspace=WORKSPACE)
        assert verdict.code == "E_CMD_DYNAMIC", name


@pytest.mark.parametrize("writer", WRITERS)
def test_a_name_that_certainly_is_in_the_workspace_is_written(writer: str) -> None:
    for name in KNOWN:
        assert judge(writer.format(name), workspace=WORKSPACE) == ALLOWED, name


@pytest.mark.parametrize("command", LISTS)
def test_what_lists_files_may_be_handed_on(command: str) -> None:
    for use in (
        "{} | xargs sed -i s/a/b/",
        "{} | xargs -I% cp % build/%",
        'for f in $({}); do touch "$f"; done',
        '{} | while IFS= read -r f; do sed -i s/a/b/ "$f"; done',
        'f=$({}); sed -i s/a/b/ "$f"',
        "touch $({})",
    ):
        assert judge(use.format(command), workspace=WORKSPACE) == ALLOWED, use


@pytest.mark.parametrize("command", NO_LISTS)
def test_what_may_print_anything_is_not_handed_on(command: str) -> None:
    for use in (
        "{} | xargs sed -i s/a/b/",
        'for f in $({}); do touch "$f"; done',
        '{} | while read -r f; do touch "$f"; done',
        'f=$({}); touch "$f"',
    ):
        assert judge(use.format(command), workspace=WORKSPACE).decision == "deny", use


@pytest.mark.parametrize("command", PARTS)
def test_parts_and_lists_of_known_names_are_known(command: str) -> None:
    assert judge(command, workspace=WORKSPACE) == ALLOWED


@pytest.mark.parametrize("command", BAD_PARTS)
def test_parts_and_lists_lead_nowhere_else(command: str) -> None:
    assert judge(command, workspace=WORKSPACE).decision == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "find . -type f -exec sed -i s/a/b/ {} +",
        "find . -name config -exec chmod +x {} \\;",
        "find -name HEAD -delete",
        "find $PWD -type f -exec touch {} +",
        "find . -ipath '*/hooks/*' -exec chmod +x {} +",
        "find . -regex '.*' -exec touch {} +",
        'find . -name "$x" -exec touch {} +',
        "for x in config a; do find . -name $x -exec touch {} +; done",
        "find . -type f -ok touch {} \\;",
        "chmod -R a-w .",
        "chmod -R u+x /ws",
        "gzip -r .",
    ],
)
def test_what_changes_the_whole_workspace_passes_by_gits_own_files(command: str) -> None:
    assert judge(command, workspace=WORKSPACE).code == "E_PATH_PROTECTED"


@pytest.mark.parametrize(
    "command",
    [
        "find . -type f -exec cat {} +",
        "find . -type f -exec node --check {} \\;",
        "x=Makefile; find . -name $x -exec touch {} +",
        "find . -name Makefile -exec sed -i s/a/b/ {} +",
        "find . -path './src/*' -exec touch {} +",
        "find . -regex '.*\\.py' -exec touch {} +",
        "find src -type f -exec sed -i s/a/b/ {} +",
        "chmod -R u+w src build",
    ],
)
def test_what_names_its_files_may_change_them(command: str) -> None:
    assert judge(command, workspace=WORKSPACE) == ALLOWED
