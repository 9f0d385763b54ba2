"""What the programs that remove, move, copy and write files may be given. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Final

from policy.command_options import Given, given
from policy.command_paths import (
    Ground,
    check_removal,
    check_tree,
    check_written,
    inside,
    texts,
)
from policy.command_protected import is_protected
from policy.shell_words import RefusedCommandError, Word, literal, literally, unreadable

_MAX_MODE: Final = 60
_CHMOD_OPTION: Final = re.compile(r"-[RcfvHLPh]+")
_MODE: Final = re.compile(r"([ugoa]*)((?:[-+=][rwxXstugo0-7]*)+)")
_MODE_STEP: Final = re.compile(r"([-+=])([rwxXstugo0-7]*)")


def named_files(words: Sequence[Word]) -> list[Word]:
    """Return the words that are no options: all after ``--``, and those that do not begin with a hyphen."""
    found: list[Word] = []
    for at, word in enumerate(words):
        if word.text == "--" and word.known:
            return [*found, *words[at + 1 :]]
        if not word.text.startswith("-") or word.text == "-":
            found.append(word)
    return found


def check_remove(words: Sequence[Word], ground: Ground) -> None:
    """Judge what is removed: every operand."""
    check_removal(named_files(words), ground)


def check_move(words: Sequence[Word], ground: Ground) -> None:
    """Judge a move: what goes is removed where it was and written where it goes."""
    found = _copied(words)
    sources = found.operands if found.has("-t", _TARGET) else found.operands[:-1]
    check_removal(sources, ground)
    _check_target(found, ground)


def check_copy(words: Sequence[Word], ground: Ground) -> None:
    """Judge where a copy goes: its last operand, or the target directory of an option."""
    found = _copied(words)
    _check_target(found, ground)
    if found.has("-s", "-l", "--symbolic-link", "--link"):
        _check_linked(found, ground)


def check_link(words: Sequence[Word], ground: Ground) -> None:
    """Judge a link: where it stands, and that nothing is written through it which may not be written."""
    found = _copied(words)
    if len(found.operands) > 1 or found.has("-t", _TARGET):
        _check_target(found, ground)
    else:
        check_written([literal("./link") for _ in found.operands], ground)
    _check_linked(found, ground)


def check_install(words: Sequence[Word], ground: Ground) -> None:
    """Judge what is installed: where it goes, directories that are made, and that no other program strips it."""
    found = _copied(words, "gmo")
    if found.has("--strip-program"):
        raise RefusedCommandError("E_CMD_WRAPPER", "install --strip-program runs a program; run it itself")
    if found.has("-d", "--directory"):
        check_written(found.operands, ground)
    else:
        _check_target(found, ground)


_TARGET: Final = "--target-directory"
_VALUED: Final = f"{_TARGET} --suffix --group --mode --owner --strip-program"
_PLAIN: Final = "--symbolic-link --link --directory --relative"


def _copied(words: Sequence[Word], short: str = "") -> Given:
    found = given(words, short=f"tS{short}", valued=_VALUED, plain=_PLAIN)
    if any("/" in one.text or not one.known for one in found.values("-S", "--suffix")):
        raise unreadable("a suffix of copies is no plain one")
    return found


def _check_target(found: Given, ground: Ground) -> None:
    """Judge where something goes, and in a directory under which names."""
    targets, sources = found.values("-t", _TARGET), found.operands
    if not targets:
        targets, sources = found.operands[-1:], found.operands[:-1]
        # A single file that goes to another name brings no name of its own along.
        if len(sources) == 1 and not any(_is_folder(one, ground) for one in targets):
            sources = []
    check_written(targets, ground)
    for source in sources:
        for text in texts(source, ground) or ():
            if is_protected(posixpath.basename(posixpath.normpath(text))):
                raise RefusedCommandError(
                    "E_PATH_PROTECTED", f"{text} is protected: no agent writes it elsewhere"
                )


def _is_folder(target: Word, ground: Ground) -> bool:
    """Whether a target can only be a directory, or is where everything is."""
    return any(
        one.endswith(("/", "/.", "/..")) or inside(one, ground) == "." for one in texts(target, ground) or ()
    )


def _check_linked(found: Given, ground: Ground) -> None:
    """Refuse a link to what no agent writes: everything could be written through it."""
    sources = found.operands
    if not found.has("-t", _TARGET) and len(sources) > 1:
        *sources, last = sources
        folder = (
            posixpath.dirname(last.text)
            if last.known
            and found.has("-s", "--symbolic", "--symbolic-link")
            and not found.has("-r", "--relative")
            else ""
        )
    else:
        folder = ""
    for source in sources:
        worth = texts(source, ground)
        if worth is None:
            raise RefusedCommandError(
                "E_CMD_DYNAMIC", f"where {source.text[:80]} links to is only known when it runs"
            )
        for text in worth:
            path = text if text.startswith(("/", "~", "$")) else posixpath.join(folder, text)
            if is_protected(text):
                raise RefusedCommandError("E_PATH_PROTECTED", f"{text} is protected: no agent links to it")
            plain = posixpath.normpath(path)
            if (inside(path, ground) is None or (ground.afar and path == text)) and not plain.startswith(
                _LINKABLE
            ):
                raise RefusedCommandError(
                    "E_CMD_OUTSIDE", f"{text} is outside the workspace; link to what is inside"
                )


_LINKABLE: Final = ("/usr/", "/opt/", "/bin/", "/lib", "/nix/", "/tmp/", "${TMPDIR}/")  # noqa: S108 - judged, not opened
"""Where links may lead: to what agents may write anyway, and to where programs are that nobody but root changes."""


def check_made(words: Sequence[Word], ground: Ground) -> None:
    """Judge files and directories that are made."""
    found = given(words, short="drtm", valued="--date --reference --time --mode")
    check_written(found.operands, ground)


def check_tee(words: Sequence[Word], ground: Ground) -> None:
    """Judge files that are written: every operand."""
    check_written(named_files(words), ground)


def check_truncate(words: Sequence[Word], ground: Ground) -> None:
    """Judge files whose length is set."""
    check_written(
        [one for one in named_files(words) if not re.fullmatch(r"[+<>/%-]?\d+\w*", one.text)], ground
    )


def check_dd(words: Sequence[Word], ground: Ground) -> None:
    """Judge where dd writes."""
    check_written([one.cut(3) for one in words if one.text.startswith("of=")], ground)
    if not all(one.known for one in words):
        raise RefusedCommandError("E_CMD_DYNAMIC", "where dd writes is only known when it runs; write it out")


def _recursive(words: Iterable[Word]) -> bool:
    return any(
        re.fullmatch(r"-\w*[rR]\w*", one.text)
        or (len(one.text) > len("--") and "--recursive".startswith(one.text))
        for one in words
    )


def check_chmod(words: Sequence[Word], ground: Ground) -> None:
    """Judge a change of permissions: no tree is opened to everybody, no file runs as somebody else."""
    plain = [one for one in words if not _CHMOD_OPTION.fullmatch(one.text) and not one.text.startswith("--")]
    copied = any(one.text.startswith("--ref") for one in words)
    for mode in [] if copied or not plain else _modes(plain[0], ground):
        if len(mode) > _MAX_MODE:
            raise unreadable("chmod has an odd mode")
        if (_recursive(words) or ground.many) and any(map(_opens, mode.split(","))):
            raise RefusedCommandError("E_CMD_PERMISSIONS", f"chmod {mode} opens a whole tree to everybody")
        if any(map(_sets_id, mode.split(","))):
            raise RefusedCommandError("E_CMD_PERMISSIONS", f"chmod {mode} lets a file run as somebody else")
    files = plain if copied else plain[1:]
    check_written(files, ground)
    if _recursive(words):
        check_tree(files, ground, "chmod -R")


def _modes(word: Word, ground: Ground) -> list[str]:
    """Return what a mode may be, as far as that is known."""
    found = texts(word, ground)
    return [word.text] if found is None else found


def _steps(mode: str) -> list[tuple[str, str, str]]:
    """Return for whom a part of a mode does what with which permissions; of a number it sets all."""
    if re.fullmatch(r"[0-7]+", mode):
        return [("", "=", mode)]
    found = _MODE.fullmatch(mode)
    return [] if found is None else [(found[1], *step) for step in _MODE_STEP.findall(found[2])]


def _opens(mode: str) -> bool:
    """Whether a part of a mode lets everybody write, by itself or as its owner or group may."""
    return any(
        re.search(r"[2367]\Z|s", allowed)
        or (("o" in who or "a" in who or not who) and re.search(r"[wug]", allowed))
        for who, step, allowed in _steps(mode)
        if step != "-"
    )


def _sets_id(mode: str) -> bool:
    """Whether a part of a mode lets a file run as its owner or its group."""
    return any(
        re.fullmatch(r"0*[2-7][0-7]{3}|.*s.*", allowed) for _, step, allowed in _steps(mode) if step != "-"
    )


def check_chown(words: Sequence[Word], ground: Ground) -> None:
    """Judge a change of owner: never a whole tree."""
    if _recursive(words):
        raise RefusedCommandError("E_CMD_PERMISSIONS", "chown -R gives a whole tree to somebody else")
    found = given(words, valued="--reference --from")
    check_written(found.operands if found.has("--reference") else found.operands[1:], ground)


_RSYNC_SHORT: Final = "efTMB@"
_RSYNC_WRITES: Final = "--backup-dir --temp-dir --partial-dir --log-file --write-batch --only-write-batch"
_RSYNC_VALUED: Final = (
    f"{_RSYNC_WRITES} --rsh --rsync-path --exclude --exclude-from --include --include-from --filter --files-from --suffix"
    " --chmod --chown --usermap --groupmap --compare-dest --copy-dest --link-dest --bwlimit --max-size --min-size"
    " --max-delete --timeout --contimeout --block-size --modify-window --out-format --log-file-format --info --debug"
    " --port --password-file --read-batch --protocol --iconv --checksum-seed --address --sockopts --compress-level"
    " --compress-choice --skip-compress --checksum-choice --stop-after --stop-at --remote-option --outbuf --copy-as"
)


def check_rsync(words: Sequence[Word], ground: Ground) -> None:
    """Judge a copy of a tree: not to or from another machine, removing only what may go."""
    found = given(words, short=_RSYNC_SHORT, valued=_RSYNC_VALUED)
    if any(re.match(r"[^/]*:", literally(one)) for one in found.operands):
        raise RefusedCommandError("E_CMD_NETWORK", "rsync opens a way to another machine")
    if found.has("--daemon"):
        raise RefusedCommandError("E_CMD_OUTLIVES", "rsync --daemon lives longer than the run")
    if found.has("-e", "--rsh", "--rsync-path"):
        raise RefusedCommandError("E_CMD_WRAPPER", "rsync runs another program for its connection")
    if any(one.text.startswith(("--del", "--remove-source")) for one in words):
        check_removal(found.operands[-1:], ground)
    if any(one.text.startswith("--remove-source") for one in words):
        check_removal(found.operands[:-1], ground)
    check_written(found.values("-T", *_RSYNC_WRITES.split()), ground)
    _check_target(found, ground)


RULES: Final = {
    **dict.fromkeys(("rm", "rmdir", "unlink", "rimraf", "trash"), check_remove),
    "mv": check_move,
    "cp": check_copy,
    "ln": check_link,
    "install": check_install,
    "rsync": check_rsync,
    **dict.fromkeys(("touch", "mkdir"), check_made),
    "tee": check_tee,
    "truncate": check_truncate,
    "dd": check_dd,
    "chmod": check_chmod,
    **dict.fromkeys(("chown", "chgrp"), check_chown),
}
"""By program: the rule for it."""
