"""Where programs that fetch something may write it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from policy.command_options import given
from policy.command_paths import Ground, check_outputs
from policy.command_protected import is_protected
from policy.shell_words import RefusedCommandError, Word

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
    check_outputs(found.values("-o", "-c", "-D", *_CURL_WRITES.split()), ground)
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
    check_outputs(found.values("-o", "-a", "-O", "-P", *_WGET_WRITES.split()), ground)
    if not found.has("-O", "--output-document"):
        _check_fetched(found.operands)


def _check_fetched(addresses: Sequence[Word]) -> None:
    """Refuse to keep what is fetched under a name that is protected."""
    for address in addresses:
        path = re.split(r"[?#]", address.text)[0]
        if is_protected(path.rstrip("/").rpartition("/")[2]):
            raise RefusedCommandError("E_PATH_PROTECTED", f"{path[-80:]} is protected: no agent writes it")
