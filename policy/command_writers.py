"""What programs that write where an option says, or over what they are given, may be given. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Final

from policy.command_options import given
from policy.command_paths import (
    Ground,
    check_changed,
    check_guessed,
    check_removal,
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
_PRINTED: Final = re.compile(r"\bprintf?\b(?:\"(?:[^\"\\\n]|\\.)*\"|[^;}\n\">])*>+\s*\"([^\"\n]+)\"")
"""What a print of awk is sent to; anywhere else ``>`` compares."""
_LEAVING_OUT: Final = re.compile(r"--?(?:x|e|exclude|extend|force-exclude|skip|ignore)")
_IN_PLACE: Final = frozenset(
    [
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
_READS_ONLY: Final = frozenset(
    {"-l", "--list", "-t", "--test", "-c", "--stdout", "--to-stdout", "--check", "--diff"}
)


def _check(targets: Sequence[Word], ground: Ground) -> None:
    """Judge files that are written, but for the standard output."""
    check_written([one for one in targets if one.text != "-"], ground)


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
    _check(found.values("-o", "--output"), ground)
    _check(found.values("-T", "--temporary-directory"), ground)


def check_uniq(words: Sequence[Word], ground: Ground) -> None:
    """Judge the second file of uniq, which it writes."""
    found = given(words, short="fsw", valued="--skip-fields --skip-chars --check-chars")
    _check(found.operands[1:], ground)


def check_xxd(words: Sequence[Word], ground: Ground) -> None:
    """Judge the second file of xxd, which it writes."""
    _check(given(words, short="cglnosR").operands[1:], ground)


def check_zip(words: Sequence[Word], ground: Ground) -> None:
    """Judge the archive that zip writes; the files after it are read."""
    found = given(words, short="bnPtO", valued="--out --temp-path --suffixes --password")
    if found.has("--unzip-command") or any(re.match(r"-\w*TT", word.text) for word in words):
        raise RefusedCommandError("E_CMD_WRAPPER", "zip is told to run a program")
    _check([*found.values("-b", "-O", "--out"), *found.operands[:1]], ground)


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
    _check(found.values("-g", "--listed-incremental", "--index-file", "--volno-file"), ground)
    archives = found.values("-f", "--file")
    if found.has(
        "-c", "-r", "-u", "-A", "--create", "--append", "--update", "--concatenate", "--catenate", "--delete"
    ):
        _check(archives, ground)
        if found.has("--remove-files"):
            check_removal(found.operands, ground)
    elif found.has("-x", "--extract", "--get"):
        if found.has("-P", "--absolute-names"):
            raise RefusedCommandError("E_CMD_OUTSIDE", "tar -P extracts to wherever the archive says")
        _check([*found.values("-C", "--directory"), *found.values("--one-top-level")], ground)
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
    _check(found.values("-d"), ground)
    check_guessed(found.operands[1:], ground)


def check_patch(words: Sequence[Word], ground: Ground) -> None:
    """Judge the files that patch is told to change; a patch in a file is not read."""
    found = given(
        words,
        short="dioprBDFgVYz",
        valued="--directory --input --output --strip --reject-file --prefix --ifdef --fuzz --get --version-control"
        " --basename-prefix --suffix --reject-format --read-only --quoting-style",
    )
    places = found.values("-d", "--directory", "-o", "--output", "-r", "--reject-file", "-B", "--prefix")
    _check([*places, *found.operands[:1]], ground)


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


_CURL_SHORT: Final = "AbcCdDeEFHKmoPQrtTuUwxXyYz"
_CURL_WRITES: Final = "--output --output-dir --dump-header --cookie-jar --trace --trace-ascii --stderr --etag-save --libcurl --hsts --alt-svc"
_CURL_VALUED: Final = (
    f"{_CURL_WRITES} --url --data --data-raw --data-binary --data-urlencode --header --user --user-agent --request --form"
    " --max-time --connect-timeout --retry --retry-delay --cookie --referer --proxy --write-out --range --upload-file"
    " --config --cacert --cert --key --resolve --interface --limit-rate --max-redirs --json --variable --etag-compare"
)


def check_curl(words: Sequence[Word], ground: Ground) -> None:
    """Judge where curl writes."""
    found = given(words, short=_CURL_SHORT, valued=_CURL_VALUED, plain="--remote-name --remote-header-name")
    _check(found.values("-o", "-c", "-D", *_CURL_WRITES.split()), ground)
    if found.has("-O", "--remote-name", "--remote-name-all"):
        _check_fetched([*found.operands, *found.values("--url")])


_WGET_SHORT: Final = "oaeiBtOTwQPADIXUlR"
_WGET_WRITES: Final = "--output-document --output-file --append-output --directory-prefix --save-cookies --warc-file --rejected-log --hsts-file"
_WGET_VALUED: Final = (
    f"{_WGET_WRITES} --execute --use-askpass --input-file --tries --timeout --wait --user-agent --header --post-data"
    " --post-file --method --body-data --user --password --load-cookies --level --accept --reject --referer --config"
)


def check_wget(words: Sequence[Word], ground: Ground) -> None:
    """Judge where wget writes, and that it runs nothing."""
    found = given(words, short=_WGET_SHORT, valued=_WGET_VALUED)
    if found.has("--use-askpass", "-e", "--execute"):
        raise RefusedCommandError(
            "E_CMD_WRAPPER", "wget is told to run a program, or set up as if by its file"
        )
    _check(found.values("-o", "-a", "-O", "-P", *_WGET_WRITES.split()), ground)
    if not found.has("-O", "--output-document"):
        _check_fetched(found.operands)


def _check_fetched(addresses: Sequence[Word]) -> None:
    """Refuse to keep what is fetched under a name that is protected."""
    for address in addresses:
        path = re.split(r"[?#]", address.text)[0]
        if is_protected(path.rstrip("/").rpartition("/")[2]):
            raise RefusedCommandError("E_PATH_PROTECTED", f"{path[-80:]} is protected: no agent writes it")


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
        check_written([literal(found) for word in words for found in _PRINTED.findall(word.text)], ground)
    if name.startswith("python") and _UNPACKING.intersection(word.text for word in words):
        check_changed([word for word in words if not word.text.startswith("-")], ground)
    if name in _IN_PLACE and not _READS_ONLY.intersection(word.text for word in words):
        files = [
            word
            for before, word in itertools.pairwise((literal(""), *words))
            if not (word.text.startswith("-") or _LEAVING_OUT.match(before.text))
        ]
        check_changed(files, ground)
        if any(re.fullmatch(r"-[a-zA-Z]*[rR]|--recursive", word.text) for word in words):
            check_tree(files, ground, name)
    elif (name in _AWKS or name in {"perl", "ruby", "yq"}) and any(_edits(name, word.text) for word in words):
        found = given(words, short="eEIlMmFxfv")
        check_changed(found.operands if found.has("-e", "-E", "-f") else found.operands[1:], ground)


_AWKS: Final = frozenset({"awk", "gawk", "mawk"})


def check_pip(words: Sequence[Word], ground: Ground) -> None:
    """Judge the folder that pip is told to install to."""
    found = given(
        words,
        short="trcefi",
        valued="--target --prefix --root --requirement --constraint --editable --index-url",
    )
    _check(found.values("-t", "--target", "--prefix", "--root"), ground)


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
