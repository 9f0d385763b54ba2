"""What each simple command may do, whatever stands before it to run it. Pure; the first rule that refuses ends it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from policy import command_builtins as builtins
from policy import command_files as files
from policy import command_names as names
from policy import command_writers as writers
from policy.command_find import check_find
from policy.command_git import check_git
from policy.command_options import known, options_end
from policy.command_paths import (
    Ground,
    check_guessed,
    check_reads,
    check_unhidden,
    check_written,
    folders,
    moved,
    texts,
)
from policy.command_printed import TAKEN
from policy.command_reading import check_reading
from policy.command_runners import check_runner, check_searcher, takes_value
from policy.command_scripts import changing_script, check_file, is_given, is_stream, sent
from policy.command_values import in_this_shell, known_names, settled
from policy.shell import RESERVED, read_script
from policy.shell_words import (
    ASSIGNED,
    GIVEN,
    Command,
    RefusedCommandError,
    Script,
    Word,
    literal,
    literally,
    one_of,
    opened,
    subscripted,
    unreadable,
)

_WRITING: Final = frozenset({">", ">>", ">|", ">&", "&>", "&>>", "<>"})
_DESCRIPTOR: Final = re.compile(r"\d+-?|-")


def check_script(text: str, ground: Ground, *, outer: Mapping[str, list[Word]] | None = None) -> None:
    """Refuse a shell's text of which any command may not run; ``ground.depth`` says how deep it stands in others.

    ``outer`` is what names may be worth that the text itself does not set, if anything.
    """
    ground.work(len(text))
    script = read_script(text, posix=ground.posix, depth=ground.depth)
    _check_functions(script)
    if names.ENDLESS.search(text):
        raise RefusedCommandError(
            "E_CMD_FORK_BOMB", "a loop without end starts processes that it waits for never"
        )
    found = known_names(script, posix=ground.posix, depth=ground.depth)
    kept = {
        name: [*worth, literal("")]
        for name, worth in (outer or {}).items()
        if found.touched is not None and name.removesuffix("[]") not in found.touched | script.values.keys()
    }
    check_reads(script, {**kept, **found.values})
    ground = replace(
        ground,
        values={**kept, **found.values},
        later={**kept, **found.values},
        unsure=ground.unsure | found.unsure,
        touched=None if ground.touched is None or found.touched is None else ground.touched | found.touched,
        networked=ground.networked or any(_program(one) in names.NETWORKED for one in script.commands),
    )
    if any(writers.takes_patch(command.words) for command in script.commands):
        _check_patches(script)
    run = [one for _, one in in_this_shell(script, posix=ground.posix, depth=ground.depth)]
    stands = folders(text, script.commands, ground.folder) if len(run) == len(script.commands) else None
    entered = False
    if stands is None:
        ground, entered = moved(ground, [command.unwrapped for command in run])
    for at, command in enumerate(script.commands):
        words = [settled(word, found.values, command.sure) for word in command.words[1:]]
        # Before the first assignment a name is what the surroundings make it, often nothing; so it may still be after
        # one that only some ways lead to.
        begun = kept | {
            name: worth if name.removesuffix("[]") in command.sure else [*worth, literal("")]
            for name, worth in found.values.items()
            if script.first[name] <= at
        }
        here = ground.folder if stands is None else stands[at]
        check_command(
            replace(command, words=(*command.words[:1], *words)), replace(ground, values=begun, folder=here)
        )
    if entered:
        _check_within(text)


def _check_patches(script: Script) -> None:
    """Judge the patches that stand in a command line, wherever they go: what git is told otherwise is none."""
    for command in script.commands:
        fed = _fed(command)
        if fed is not None and (_program(command) != "git" or writers.takes_patch(command.words)):
            writers.check_patched(fed.text)


def _check_within(text: str) -> None:
    """Refuse whatever does more than read in a command line that enters what is protected."""
    try:
        check_reading(text)
    except RefusedCommandError as refused:
        raise RefusedCommandError(
            "E_PATH_PROTECTED", f"it enters a protected folder, where agents only read ({refused.reason})"
        ) from None


def check_command(command: Command, ground: Ground) -> None:
    """Refuse a simple command that may not run, with its assignments and redirections."""
    for name, value in command.assignments:
        builtins.check_name(name, value)
        if name == "TMPDIR":
            check_guessed([value], ground)
    for redirect in command.redirects:
        if redirect.operator in _WRITING:
            if redirect.operator == ">&" and _DESCRIPTOR.fullmatch(redirect.target.text):
                continue
            check_written([redirect.target], ground)
        elif redirect.target.text.startswith(("/dev/tcp", "/dev/udp")):
            raise RefusedCommandError("E_CMD_NETWORK", f"{redirect.target.text} is a connection, not a file")
    if command.words:
        set_for_it = GIVEN.intersection(name for name, _ in command.assignments)
        ground = replace(ground, unsure=ground.unsure | set_for_it, piped=command.piped)
        check_words(command.words, ground, fed=_fed(command))


def check_words(words: Sequence[Word], ground: Ground, *, fed: Word | None = None) -> None:
    """Refuse a program with its arguments; ``fed`` is the text that stands as its input in the command line."""
    if ground.depth > 2 * _MAX_NESTED:
        raise RefusedCommandError("E_LIMIT_COMMAND", "programs run programs too deep")
    ground.work(sum(len(word.text) for word in words))
    first = words[0]
    if not first.known or first.pattern or first.text.startswith("~"):
        raise RefusedCommandError(
            "E_CMD_DYNAMIC", "which program runs is only known when it runs; write its name out"
        )
    name = posixpath.basename(first.text.rstrip("/"))
    if name in RESERVED and first.text == name:
        raise unreadable("a word of the shell's own is written so that it is none")
    if not name or name.startswith("-") or any(char in first.text for char in "\\{}="):
        raise unreadable("a program has an odd name")
    found = names.refused(name)
    if found is not None:
        raise RefusedCommandError(found[0], f"{name} {found[1]}")
    rest = words[1:]
    folder = ground.folder if name in _STANDING or name in names.WRAPPERS or name in names.SHELLS else ""
    ground = replace(ground, depth=ground.depth + 1, folder=folder)
    if name in names.WRAPPERS:
        _check_wrapped(name, rest, ground, fed)
    elif name in names.SHELLS:
        _check_shell(name, rest, ground, fed)
    elif name.startswith(_GIT):
        check_git([literal(name[len(_GIT) :]), *rest], ground)
    elif (rule := _RULES.get(name)) is not None:
        if name in _WRITERS:
            check_unhidden(rest, ground, name)
        rule(rest, ground)
    if name not in names.FREE and name not in _RULES and name not in names.SEARCHERS and name != "ps":
        writers.check_anything(name, rest, ground)
    if name in names.RUNNERS:
        check_runner(name, rest, ground, check_words, _has_rules)
    if name in names.SEARCHERS:
        check_searcher(name, rest, replace(ground, many=True), check_words)
    if name in names.INTERPRETERS or re.fullmatch(r"(?:python|pypy|ruby|perl|lua|php)[\d.]+", name):
        _check_interpreter(name, rest, ground, fed)
    if _publishes(name, [word.text for word in rest]):
        raise RefusedCommandError(
            "E_CMD_PUBLISH", f"{name} publishes a package; the run delivers its work itself"
        )


def _publishes(name: str, words: Sequence[str]) -> bool:
    """Whether a program is told to publish: by a sub-command, or a task of that name, not by a word for another one."""
    if re.fullmatch(r"(?:python|pypy)[\d.]*", name):
        return any(re.fullmatch(r"-\w*mtwine|twine", one) for one in words[: _module_ends(words)])
    told = names.PUBLISHING.get(name, ())
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        if word in told or (name in names.TASKS and names.PUBLISHING_TASK.search(word)):
            return True
        if name in names.TASKS or word not in names.NOT_PUBLISHING or takes_value(before):
            continue
        script = next((one for one in words[at + 1 :] if not one.startswith("-")), "")
        return word in names.RUNNERS_RUN and script in told
    return False


def _module_ends(words: Sequence[str]) -> int:
    """Return after which word of an interpreter it is said which module it runs, nothing if none is."""
    return next((at + 2 for at, one in enumerate(words) if re.match(r"-[bBdEhiIOPqsSuvVx]*m", one)), 0)


_MAX_NESTED: Final = 12
_GIT: Final = "git-"


def _program(command: Command) -> str:
    return posixpath.basename(command.words[0].text) if command.words else ""


def _fed(command: Command) -> Word | None:
    """Return the text that a here document or a here string feeds a command, None without one."""
    for redirect in reversed(command.redirects):
        if redirect.operator == "<<":
            return redirect.body[0] if redirect.body else opened()
        if redirect.operator == "<<<":
            return redirect.target
    return None


_TEXTS: Final = frozenset({"eval", "trap"})
_TEXT_PART: Final = re.compile(r"[^\s;&|(){}]+")


def _check_functions(script: Script) -> None:
    """Refuse functions that run themselves, by whatever way round: the only use of that in one line is to multiply."""
    if script.functions.keys() & TAKEN:
        raise unreadable("a function has the name of what is taken at its word")
    runs: dict[str, set[str]] = {}
    for name, spans in script.functions.items():
        for start, end in spans:
            runs.setdefault(name, set()).update(
                part
                for one in script.commands[start:end]
                for word in one.words
                for part in (_TEXT_PART.findall(word.text) if one.words[0].text in _TEXTS else [word.text])
                if part in script.functions
            )
    for name in runs:
        reached, todo = set[str](), [name]
        while todo:
            for one in sorted(runs.get(todo.pop(), ())):
                if one == name:
                    raise RefusedCommandError("E_CMD_FORK_BOMB", f"the function {name} runs itself")
                if one not in reached:
                    reached.add(one)
                    todo.append(one)


def _check_wrapped(name: str, words: Sequence[Word], ground: Ground, fed: Word | None) -> None:
    if name == "command" and words and words[0].text in {"-v", "-V", "-pv", "-pV"}:
        return
    wrapper = names.WRAPPERS[name]
    end = options_end(words, wrapper, name)
    at = end + wrapper.leading
    known(words[end:at], name)
    if at < len(words):
        check_words(words[at:], ground, fed=fed)


def _check_env(words: Sequence[Word], ground: Ground) -> None:
    at = options_end(words, names.ENV, "env")
    while at < len(words) and (found := ASSIGNED.match(words[at].text)):
        builtins.check_name(found[1], words[at].cut(found.end()))
        worth = texts(words[at], ground)
        several = any("…" in one for one in words[at].expanded or ()) or any(
            len(one.split()) > 1 for one in worth or ()
        )
        if not words[at].known and (worth is None or several):
            known([words[at]], "env")
        ground = replace(ground, unsure=ground.unsure | GIVEN.intersection({found[1]}))
        at += 1
    if at < len(words):
        check_words(words[at:], ground)


def _check_xargs(words: Sequence[Word], ground: Ground) -> None:
    at = options_end(words, names.XARGS, "xargs")
    marks = list[str]()
    for number, word in enumerate(words[:at]):
        if word.text.startswith("-I"):
            marks.extend(one.text for one in words[number + 1 : number + 2] if word.text == "-I")
            marks.append(word.text[2:])
        elif word.text.startswith(("--replace", "-i")):
            marks.append(word.text.partition("=")[2] or word.text.removeprefix("--replace")[2:] or "{}")
    # What a pipe brings is one of the files that were listed, or anything.
    named = any(one.text.startswith(("-a", "--arg-file")) for one in words[:at])
    listed = opened() if named or ground.piped is None else one_of(ground.piped)
    filled = [_filled(one, [mark for mark in marks if mark], listed) for one in words[at:]]
    if filled:
        check_words([*filled, *([] if any(marks) else [listed])], replace(ground, many=True))


def _filled(word: Word, marks: Sequence[str], listed: Word) -> Word:
    """Return a word of xargs with what it reads in the place of its marks."""
    mark = next((mark for mark in marks if mark in word.text), "")
    if not mark:
        return word
    before, _, after = word.text.partition(mark)
    filled = Word(
        before + listed.text + after,
        word.shape[: len(before)] + listed.shape + word.shape[len(word.shape) - len(after) :],
    )
    return _filled(filled, marks, listed) if listed.known and mark not in listed.text else opened()


def _check_shell(name: str, words: Sequence[Word], ground: Ground, fed: Word | None) -> None:
    posix = name not in {"bash", "rbash"}
    at, commanded = 0, False
    while at < len(words) and words[at].text.startswith(("-", "+")):
        text = words[at].text
        at += 1
        if text in {"--", "-"}:
            break
        if text in {"--login", "--noprofile", "--norc", "--posix", "--verbose"}:
            posix = posix or text == "--posix"
            continue
        commanded = commanded or "c" in text
        if "s" in text and not commanded:
            raise sent(name)
        if (
            names.SHELL_OPTIONS.fullmatch(text.replace("c", "").replace("o", "")) is None
            or not words[at - 1].known
        ):
            raise unreadable(f"{name} has the option {text}, which is not read here")
        known(words[at : at + text.count("o")], name)
        at += text.count("o")
    ground = replace(ground, posix=posix)
    if commanded:
        if at >= len(words):
            raise unreadable(f"{name} -c has no command line")
        known(words[at : at + 1], f"{name} -c")
        if any(subscripted(literally(word)) for word in words[at + 1 :]):
            raise unreadable(f"{name} is given a subscript that bash would expand once more")
        _check_texts([words[at]], ground, f"what {name} -c runs")
    elif at < len(words):
        if words[at].shape[:1] in {"", "$", "*", "?", "[", "{"} and not is_given(words[at], ground):
            raise changing_script()
        check_file(words[at], ground)
    elif fed is not None:
        _check_texts([fed], ground, f"what {name} reads")
    else:
        raise sent(name)


def _check_texts(words: Sequence[Word], ground: Ground, what: str) -> None:
    """Judge words as a script of their own."""
    if not all(word.known for word in words):
        raise RefusedCommandError("E_CMD_DYNAMIC", f"{what} is only known when it runs; write it out")
    check_script(" ".join(word.text for word in words), replace(ground, depth=ground.depth + 1, values={}))


def _check_eval(words: Sequence[Word], ground: Ground) -> None:
    if any(word.pattern for word in words):
        raise RefusedCommandError("E_CMD_DYNAMIC", "what eval runs is only known when it runs; write it out")
    _check_texts(words, ground, "what eval runs")


def _check_trap(words: Sequence[Word], ground: Ground) -> None:
    operands = [word for word in words if word.text != "--"]
    if len(operands) > 1 and operands[0].text not in {"-", "-l", "-p"}:
        known(operands[:1], "trap")
        check_script(operands[0].text, replace(ground, depth=ground.depth + 1, values={}), outer=ground.later)


def _check_source(words: Sequence[Word], ground: Ground) -> None:
    if words:
        check_file(words[0], ground)


def _check_interpreter(name: str, words: Sequence[Word], ground: Ground, fed: Word | None) -> None:
    for word in (*words, *([fed] if fed else ())):
        if names.EMBEDDED.search(word.text):
            raise RefusedCommandError(
                "E_CMD_EMBEDDED", f"{name} is given a text that destroys: {word.text[:80]}"
            )
    operands = [word for word in words if not word.text.startswith("-") or word.text == "-"]
    silent = not operands or operands[0].text == "-" or is_stream(operands[0].text, ground)
    silent = silent or not operands[0].known
    said = name in names.SAID_FIRST or any(word.text in names.SAID_OPTIONS for word in words)
    if ground.networked and silent and fed is None and not said:
        raise sent(name)


def _has_rules(name: str) -> bool:
    return (
        name in _RULES
        or name in names.SHELLS
        or name in names.WRAPPERS
        or name in names.INTERPRETERS
        or name.startswith(_GIT)
    )


def _check_found(words: Sequence[Word], ground: Ground) -> None:
    check_find(words, replace(ground, many=True), check_words)


_STANDING: Final = (files.RULES.keys() - {"rsync"}) | {"sed", "git", "env", "xargs", "eval", "trap"}
"""Programs that read every path from where they stand: others may go elsewhere first."""
_WRITERS: Final = files.RULES.keys() | writers.RULES.keys()
_RULES: Final[dict[str, Callable[[Sequence[Word], Ground], None]]] = {
    "git": check_git,
    "find": _check_found,
    "xargs": _check_xargs,
    "env": _check_env,
    "eval": _check_eval,
    "trap": _check_trap,
    "source": _check_source,
    ".": _check_source,
    **dict.fromkeys(("export", "declare", "typeset", "local", "readonly"), builtins.check_exported),
    **files.RULES,
    **writers.RULES,
    "kill": builtins.check_kill,
    "hash": builtins.check_hash,
    "shopt": builtins.check_shopt,
    "jobs": builtins.check_jobs,
    **dict.fromkeys(("mapfile", "readarray"), builtins.check_mapfile),
}
