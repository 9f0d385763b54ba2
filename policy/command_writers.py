"""What programs that write where an option says, or over what they are given, may be given. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Final

from policy.command_archives import check_tar, check_unzip, check_zip
from policy.command_fetchers import check_curl, check_wget
from policy.command_options import given
from policy.command_paths import (
    Ground,
    check_changed,
    check_guessed,
    check_outputs,
    check_tree,
    check_unhidden,
    check_written,
)
from policy.command_protected import is_protected
from policy.command_sed import check_sed
from policy.shell_words import RefusedCommandError, Word, literal

_OUTPUT: Final = re.compile(
    r"--?[\w-]*(?:out|dir|dest|target|prefix|temp|tmp|build|root|cwd|save|write|report|xml|log)[\w-]*"
)
"""An option that by its name says where to write."""
_NO_OUTPUT: Final = re.compile(r"--?[\w-]*(?:exclude|ignore|skip|omit|without|include|git-dir)[\w-]*")
_OUTPUT_SHORT: Final = re.compile(r"-[oCOdtB]")
_MAX_OPTION: Final = 256
_UNPACKING: Final = frozenset({"zipfile", "tarfile"})
_AWK_SIGNS: Final = re.compile(r"\bprintf?\b|[\"\\;}\n>]")
"""What decides where a print of awk ends, and whether a place stands in a string."""
_SENT_TO: Final = re.compile(r">+\s*\"([^\"\n]+)\"")
_LEAVING_OUT: Final = re.compile(
    r"--?(?:x|e|exclude|extend|force-exclude|skip|ignore)|--(?:config|settings-(?:path|file)|ignore-path)\Z"
)
_PACKERS: Final = frozenset(
    {
        *(
            "gzip",
            "gunzip",
            "bzip2",
            "bunzip2",
            "xz",
            "unxz",
            "lzma",
            "unlzma",
            "zstd",
            "unzstd",
            "lz4",
            "pigz",
        ),
    }
)
_TO_OUTPUT: Final = re.compile(r"-[dfkhnNqrvVsezLuw0-9]*[clt]")
"""Short options of packers of which one sends what they make to the standard output, or only tells of it."""
_TOLD_TO_WRITE: Final = {
    **dict.fromkeys(("gofmt", "goimports"), re.compile(r"--?w(?:=.*)?")),
    **dict.fromkeys(("prettier", "shfmt"), re.compile(r"-w|--write(?:=.*)?")),
    **dict.fromkeys(("yapf", "autopep8"), re.compile(r"-[a-zA-Z]*i[a-zA-Z]*|--in-place")),
    "clang-format": re.compile(r"--?i(?:=.*)?"),
}
"""The option without which some programs only print what they make."""
_IN_PLACE: Final = frozenset(
    [
        *_PACKERS,
        *(
            "sponge",
            "dos2unix",
            "unix2dos",
            "ed",
            "ex",
            "red",
            "setfacl",
            "setfattr",
            "chattr",
            "mkfifo",
            "split",
        ),
        *(
            "csplit",
            "rename",
            "prename",
            "black",
            "isort",
            "autopep8",
            "yapf",
            "gofmt",
            "goimports",
            "rustfmt",
        ),
        *("prettier", "clang-format", "shfmt", "ar", "ranlib", "strip", "objcopy", "cpio", "mktemp"),
    ]
)
"""Programs that may write over, or in the place of, what they are given."""
_READS_ONLY: Final = frozenset({"--list", "--test", "--stdout", "--to-stdout", "--check", "--diff"})
_ONLY_CHECK: Final = frozenset({"black", "isort"})
"""Those of which ``-c`` says that nothing is written."""


def check_sort(words: Sequence[Word], ground: Ground) -> None:
    """Judge where sort and shuf write, and that no other program packs what they keep."""
    found = given(
        words,
        short="ktoST",
        valued="--output --key --field-separator --buffer-size --temporary-directory --compress-program --files0-from"
        " --batch-size --parallel --random-source --head-count --input-range",
    )
    if found.has("--compress-program"):
        raise RefusedCommandError("E_CMD_WRAPPER", "sort --compress-program runs a program; run it itself")
    check_outputs(found.values("-o", "--output"), ground)
    check_outputs(found.values("-T", "--temporary-directory"), ground)


def check_uniq(words: Sequence[Word], ground: Ground) -> None:
    """Judge the second file of uniq, which it writes."""
    found = given(words, short="fsw", valued="--skip-fields --skip-chars --check-chars")
    check_outputs(found.operands[1:], ground)


def check_xxd(words: Sequence[Word], ground: Ground) -> None:
    """Judge the second file of xxd, which it writes."""
    check_outputs(given(words, short="cglnosR").operands[1:], ground)


def check_patch(words: Sequence[Word], ground: Ground) -> None:
    """Judge the files that patch is told to change; a patch in a file is not read."""
    found = given(
        words,
        short="dioprBDFgVYz",
        valued="--directory --input --output --strip --reject-file --prefix --ifdef --fuzz --get --version-control"
        " --basename-prefix --suffix --reject-format --read-only --quoting-style",
    )
    places = found.values("-d", "--directory", "-o", "--output", "-r", "--reject-file", "-B", "--prefix")
    check_outputs([*places, *found.operands[:1]], ground)


def takes_patch(words: Sequence[Word]) -> bool:
    """Whether a command changes files by a patch that it may be sent."""
    return _TAKES_PATCH.search(" ".join(word.text for word in words)) is not None


def check_patched(text: str) -> None:
    """Refuse a patch that stands in a command line and changes what is protected."""
    for line in text.splitlines():
        found = re.match(r"(?:\+\+\+|---|\*\*\*|Index:|rename to|copy to|diff --git)\s+(.*)", line)
        if found is not None and any(is_protected(one) for one in re.split(r"[\s\"]+", found[1])):
            raise RefusedCommandError("E_PATH_PROTECTED", f"{line[:80]} is protected: no agent writes it")


_TAKES_PATCH: Final = re.compile(
    r"(?<![\w.-])g?patch(?![\w.-])|(?<![\w.-])git(?:-| (?:-\S+ )*)(?:apply|am)\b"
)


def check_anything(name: str, words: Sequence[Word], ground: Ground) -> None:
    """Refuse any program an option that by its name says where to write, with what is protected for its value.

    What writes over its operands may have no such operand; this reads nothing else of programs without a rule.
    """
    if any(is_protected(word.text) for word in words):
        check_unhidden(words, ground, name)
    for at, word in enumerate(words):
        option, equals, _ = word.text.partition("=")
        if len(option) > _MAX_OPTION:
            continue
        if _OUTPUT.fullmatch(option) and not _NO_OUTPUT.fullmatch(option):
            check_guessed([word.cut(len(option) + 1)] if equals else words[at + 1 : at + 2], ground)
        elif _OUTPUT_SHORT.match(word.text) and not word.text.startswith("--"):
            glued = word.cut(len(word.text) - len(word.text[2:].removeprefix("=")))
            check_guessed([glued] if glued.text else words[at + 1 : at + 2], ground)
    if name in _AWKS:
        check_written([literal(found) for word in words for found in _printed_to(word.text)], ground)
    if name.startswith("python") and _UNPACKING.intersection(word.text for word in words):
        check_changed([word for word in words if not word.text.startswith("-")], ground)
    if name in _IN_PLACE:
        _check_in_place(name, words, ground)
    elif (name in _AWKS or name in {"perl", "ruby", "yq"}) and any(_edits(name, word.text) for word in words):
        found = given(words, short="eEIlMmFxfv")
        operands = [one for one in found.operands if name not in _AWKS or one.text != "inplace"]
        check_written(operands if found.has("-e", "-E", "-f") else operands[1:], ground)


def _check_in_place(name: str, words: Sequence[Word], ground: Ground) -> None:
    """Judge the operands of a program that writes over them, or beside them; some do so only where an option says so."""
    asked, given_words = _TOLD_TO_WRITE.get(name), [word.text for word in words]
    told = asked is not None and any(map(asked.fullmatch, given_words))
    reads = not _READS_ONLY.isdisjoint(given_words) or (name in _ONLY_CHECK and "-c" in given_words)
    if (reads and not told) or (name in _PACKERS and any(map(_TO_OUTPUT.match, given_words))):
        return
    files = [
        word
        for before, word in itertools.pairwise((literal(""), *words))
        if not (word.text.startswith("-") or _LEAVING_OUT.match(before.text))
    ]
    check_changed(files, ground)
    if any(re.fullmatch(r"-[a-zA-Z]*[rR]|--recursive", text) for text in given_words):
        check_tree(files, ground, name)
    if asked is None or told:
        check_written(_overwritten(name, words, files), ground)


def _overwritten(name: str, words: Sequence[Word], files: Sequence[Word]) -> Sequence[Word]:
    """Return those operands that a program writes over, or after which it names what it writes."""
    if name == "ar" and words and re.match(r"-?[tpx]", words[0].text):
        return ()
    if name == "objcopy":
        return files[-1:]
    if name == "split":
        return given(words, short="abClnt").operands[1:]
    if name == "csplit":
        return given(words, short="fbn", valued="--prefix").values("-f", "--prefix")
    return files


_AWKS: Final = frozenset({"awk", "gawk", "mawk"})


def _printed_to(text: str) -> list[str]:
    """Return what the prints of awk are sent to; anywhere else ``>`` compares.

    A print may begin anywhere, in what looks like a string too, so both are followed at once: one pass over the text.
    """
    found: list[str] = []
    printing = quoted = False
    escaped = -1
    for sign in _AWK_SIGNS.finditer(text):
        char, at = sign[0], sign.start()
        within = quoted and at != escaped
        if char == '"':
            printing, quoted = within, printing or (quoted and not within)
        elif char == "\\":
            escaped = at + 1 if within else escaped
        elif char == ">":
            sent = _SENT_TO.match(text, at) if printing else None
            found.extend([] if sent is None else [sent[1]])
            printing = False
        elif char in {";", "}", "\n"}:
            printing, quoted = False, quoted and char != "\n"
        else:
            printing = True
    return found


def check_pip(words: Sequence[Word], ground: Ground) -> None:
    """Judge the folder that pip is told to install to."""
    found = given(
        words,
        short="trcefi",
        valued="--target --prefix --root --requirement --constraint --editable --index-url",
    )
    check_outputs(found.values("-t", "--target", "--prefix", "--root"), ground)


def _edits(name: str, text: str) -> bool:
    """Whether an option makes a program write over what it reads."""
    if name in _AWKS:
        return text.endswith("inplace")
    return re.match(r"-(?!-)[A-Za-z0-9]*i|--in-?place", text) is not None


RULES: Final[dict[str, Callable[[Sequence[Word], Ground], None]]] = {
    "sed": check_sed,
    "gsed": check_sed,
    "sort": check_sort,
    "shuf": check_sort,
    "uniq": check_uniq,
    "xxd": check_xxd,
    "zip": check_zip,
    "tar": check_tar,
    "gtar": check_tar,
    "bsdtar": check_tar,
    "unzip": check_unzip,
    "patch": check_patch,
    "gpatch": check_patch,
    "curl": check_curl,
    "wget": check_wget,
    **dict.fromkeys(("pip", "pip3"), check_pip),
}
"""By program: the rule for it."""
