"""What programs that pack and unpack may be given. Pure; what is in an archive is not read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from policy.command_options import given
from policy.command_paths import Ground, check_guessed, check_outputs, check_removal
from policy.command_protected import is_protected
from policy.shell_words import RefusedCommandError, Word

_PACKERS: Final = frozenset(
    {
        "gzip",
        "bzip2",
        "xz",
        "lzma",
        "lzip",
        "lzop",
        "zstd",
        "pigz",
        "pbzip2",
        "pixz",
        "pxz",
        "lz4",
        "compress",
    }
)


def check_zip(words: Sequence[Word], ground: Ground) -> None:
    """Judge the archive that zip writes; the files after it are read, or removed once they are in it."""
    found = given(words, short="bnPtO", valued="--out --temp-path --suffixes --password", plain="--move")
    if found.has("--unzip-command") or any(re.match(r"-\w*TT", word.text) for word in words):
        raise RefusedCommandError("E_CMD_WRAPPER", "zip is told to run a program")
    check_outputs([*found.values("-b", "-O", "--out"), *found.operands[:1]], ground)
    if found.has("-m", "--move"):
        if found.has("-@", "--names-stdin"):
            raise RefusedCommandError("E_CMD_DYNAMIC", "what zip removes is only known when it runs; name it")
        check_removal(found.operands[1:], ground)


_TAR_VALUED: Final = (
    "--directory --file --to-command --checkpoint-action --use-compress-program --rsh-command --info-script --new-volume-script"
    " --one-top-level --listed-incremental --index-file --transform --xform --strip-components --exclude --exclude-from"
    " --files-from --owner --group --mode --mtime --newer --newer-mtime --after-date --starting-file --tape-length"
    " --blocking-factor --record-size --label --format --suffix --sort --add-file --exclude-tag --exclude-ignore"
    " --owner-map --group-map --hole-detection --level --volno-file --warning --quoting-style --rmt-command"
)
_TAR_PLAIN: Final = "--extract --get --create --append --update --concatenate --catenate --list --delete --remove-files --absolute-names"


def check_tar(words: Sequence[Word], ground: Ground) -> None:
    """Judge what tar makes: an archive, or files where it extracts; it runs no programs but packers."""
    found = given(_dashed(words), short="CfIFgTXVNKLbH", valued=_TAR_VALUED, plain=_TAR_PLAIN)
    actions = found.values("--checkpoint-action")
    packers = found.values("-I", "--use-compress-program")
    if (
        found.has(
            "-F", "--to-command", "--rsh-command", "--info-script", "--new-volume-script", "--rmt-command"
        )
        or any(
            not one.text.startswith(("dot", "echo", "ttyout", "sleep", "bell", "totals")) for one in actions
        )
        or any(not one.known or one.text.partition(" ")[0] not in _PACKERS for one in packers)
    ):
        raise RefusedCommandError("E_CMD_WRAPPER", "tar runs a program; run that program itself")
    check_outputs(found.values("-g", "--listed-incremental", "--index-file", "--volno-file"), ground)
    archives = found.values("-f", "--file")
    if found.has(
        "-c", "-r", "-u", "-A", "--create", "--append", "--update", "--concatenate", "--catenate", "--delete"
    ):
        check_outputs(archives, ground)
        if found.has("--remove-files"):
            check_removal(found.operands, ground)
    elif found.has("-x", "--extract", "--get"):
        if found.has("-P", "--absolute-names"):
            raise RefusedCommandError("E_CMD_OUTSIDE", "tar -P extracts to wherever the archive says")
        check_outputs([*found.values("-C", "--directory"), *found.values("--one-top-level")], ground)
        check_guessed(found.operands, ground)
        if any(_names_protected(one.text) for one in found.values("--transform", "--xform")):
            raise RefusedCommandError("E_PATH_PROTECTED", "tar renames what it extracts to what is protected")


def _dashed(words: Sequence[Word]) -> Sequence[Word]:
    """Return the words of tar with its old way of options, a first word without a hyphen, written as the new one.

    The values of old options follow in the order of their letters.
    """
    if not words or words[0].text.startswith("-") or not re.fullmatch(r"[A-Za-z]+", words[0].text):
        return words
    made: list[Word] = []
    at = 1
    for letter in words[0].text:
        made.append(Word(f"-{letter}", f"-{letter}"))
        if letter in "CfIFgTXVNKLbH":
            made.extend(words[at : at + 1])
            at += 1
    return [*made, *words[at:]]


def _names_protected(text: str) -> bool:
    return any(is_protected(part) for part in re.split(r"[^\w.-]+", text))


def check_unzip(words: Sequence[Word], ground: Ground) -> None:
    """Judge where unzip puts files, and which."""
    found = given(words, short="dPI")
    check_outputs(found.values("-d"), ground)
    check_guessed(found.operands[1:], ground)
