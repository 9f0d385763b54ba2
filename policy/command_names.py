"""Programs by name: which no agent runs and why, which run another program, and how their options are read. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

REFUSED: Final = (
    (
        "E_CMD_PRIVILEGE",
        "runs as somebody else; agents run as themselves",
        (
            "sudo su doas pkexec runuser chroot unshare nsenter setpriv capsh setcap newgrp sg login passwd chpasswd useradd "
            "userdel usermod groupadd groupdel visudo sudoedit run0 adduser deluser addgroup delgroup gosu su-exec"
        ),
    ),
    (
        "E_CMD_OUTLIVES",
        "makes something that lives longer than the run",
        (
            "crontab at batch anacron systemctl systemd-run service launchctl loginctl initctl update-rc.d chkconfig "
            "rc-service rc-update screen tmux byobu dtach abduco start-stop-daemon daemonize busctl dbus-send gdbus"
        ),
    ),
    (
        "E_CMD_CONTAINER",
        "reaches beyond the run through a container or a virtual machine",
        (
            "docker docker-compose podman podman-compose nerdctl ctr crictl buildah lxc runc crun machinectl virsh vagrant "
            "kubectl"
        ),
    ),
    (
        "E_CMD_DEVICE",
        "works on devices and file systems",
        (
            "mount umount mkfs mke2fs mkswap swapon swapoff fdisk sfdisk cfdisk gdisk sgdisk parted wipefs blkdiscard losetup "
            "cryptsetup dmsetup hdparm badblocks mknod fusermount shred debugfs tune2fs"
        ),
    ),
    (
        "E_CMD_SYSTEM",
        "changes the machine",
        (
            "shutdown reboot halt poweroff init telinit insmod modprobe rmmod kexec sysctl iptables ip6tables nft ufw "
            "setenforce timedatectl hostnamectl hwclock"
        ),
    ),
    (
        "E_CMD_KILL",
        "ends processes that may not be yours; kill yours by its id",
        "pkill killall killall5 skill xkill fuser",
    ),
    (
        "E_CMD_NETWORK",
        "opens a way to another machine",
        "ssh scp sftp nc ncat netcat socat telnet ftp lftp mosh rsh rlogin ssh-copy-id",
    ),
    ("E_CMD_PUBLISH", "publishes; the run delivers its work itself", "gh glab hub twine"),
    (
        "E_CMD_INTERACTIVE",
        "waits for a person at a terminal",
        "vi vim nvim nano emacs pico less more man top htop",
    ),
    (
        "E_CMD_WRAPPER",
        "runs another program in a way that is not read here; run that program itself",
        (
            "strace ltrace script watch parallel flock expect unbuffer rlwrap setarch linux32 linux64 taskset chrt numactl "
            "prlimit fakeroot proot bwrap firejail entr run-parts dbus-run-session faketime catchsegv run-one chronic ts ssh-agent "
            "compgen hyperfine nix-shell ifne pee gdb"
        ),
    ),
    (
        "E_CMD_SHELL",
        "is a shell that is not read here; use bash or sh",
        "zsh fish csh tcsh rc nu elvish xonsh pwsh posh yash pdksh ksh93 lksh oksh",
    ),
    ("E_CMD_ALIAS", "changes what a name means", "alias complete bind fc enable"),
)
"""Per reason: the code, what is said of the program, and the programs."""

_BY_NAME: Final = {name: (code, why) for code, why, names in REFUSED for name in names.split()}
_BY_SHAPE: Final = (
    (re.compile(r"mkfs\.\w+"), "E_CMD_DEVICE", "works on devices and file systems"),
    (
        re.compile(r"ld-(?:linux|musl).*|ld(?:64)?(?:-[\w.-]+)?\.so[\d.]*"),
        "E_CMD_WRAPPER",
        "runs another program in a way that is not read here; run that program itself",
    ),
    (re.compile(r"systemd-\w+"), "E_CMD_OUTLIVES", "makes something that lives longer than the run"),
)


def refused(name: str) -> tuple[str, str] | None:
    """Return the code and the reason for which no agent runs a program, None if there is none."""
    for shape, code, why in _BY_SHAPE:
        if shape.fullmatch(name):
            return code, why
    return _BY_NAME.get(name)


@dataclass(frozen=True)
class Wrapper:
    """How a program that runs another is read: options with a value, those without, and words before the program.

    A value of an ``optional`` option stands in the same word (``--eof=x``, ``-ex``): the next word is never one.
    """

    valued: str = ""
    optional: str = ""
    plain: str = ""
    leading: int = 0


WRAPPERS: Final = {
    "nohup": Wrapper(),
    "builtin": Wrapper(),
    "setsid": Wrapper(plain="-c -f -w --ctty --fork --wait"),
    "nice": Wrapper(valued="-n --adjustment"),
    "ionice": Wrapper(valued="-c -n --class --classdata", plain="-t --ignore"),
    "timeout": Wrapper(
        valued="-s -k --signal --kill-after",
        plain="-v -f -p --foreground --preserve-status --verbose",
        leading=1,
    ),
    "stdbuf": Wrapper(valued="-i -o -e --input --output --error"),
    "time": Wrapper(valued="-f --format", plain="-p -v --portability --verbose"),
    "command": Wrapper(plain="-p"),
    "exec": Wrapper(valued="-a", plain="-c -l"),
    "busybox": Wrapper(),
    "toybox": Wrapper(),
}
"""Programs that run the rest of their words."""

XARGS: Final = Wrapper(
    valued="-I -L -n -P -s -d -E -a --max-args --max-procs --max-chars --delimiter --arg-file",
    optional="-i -e -l --replace --max-lines --eof",
    plain="-0 -r -t -x --null --no-run-if-empty --verbose --exit --open-tty -o",
)
ENV: Final = Wrapper(
    valued="-u --unset",
    plain="- -i -0 -v --ignore-environment --null --debug",
)

SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "rbash"})
SHELL_OPTIONS: Final = re.compile(r"[-+][abefhklmnpuvxBCEHPTil]*")
"""Short options of shells that take no value, ``c``, ``s`` and ``o`` aside."""

RUNNERS: Final = frozenset(
    [
        "uv",
        "poetry",
        "pipenv",
        "hatch",
        "pdm",
        "rye",
        "conda",
        "mamba",
        "micromamba",
        "npx",
        "uvx",
        "npm",
        "pnpm",
        "yarn",
        "bunx",
        "bun",
        "pipx",
        "mise",
        "asdf",
        "direnv",
        "xvfb-run",
        "dotenv",
        "bundle",
        "coverage",
        "tox",
        "nox",
        *("pyenv", "rbenv", "nodenv", "opam", "pixi", "nix", "volta", "nvm", "fnm", "cross-env", "dotenvx"),
        *("tini", "valgrind", "perf", "cpulimit", "proxychains", "proxychains4"),
    ]
)
"""Programs that may run another one by their later words."""
RUNNERS_DIRECT: Final = frozenset(
    {
        *("npx", "bunx", "uvx", "xvfb-run", "dotenv", "cross-env"),
        *("tini", "valgrind", "cpulimit", "proxychains", "proxychains4"),
    }
)
"""Those of them that need no sub-command for it."""
RUNNERS_RUN: Final = frozenset({"run", "exec", "x", "dlx", "tool", "create"})
"""Their sub-commands that run a program."""
RUNNERS_OWN: Final = frozenset({"init", "login", "service", "watch", "complete", "enable", "script"})
"""Their own sub-commands that have the name of a refused program."""
RUNNERS_PLAIN: Final = frozenset(
    [
        "--",
        "-q",
        "--quiet",
        "-v",
        "--verbose",
        "-y",
        "--yes",
        "-a",
        "--auto-servernum",
        "--silent",
        "--frozen",
        "--locked",
        "--offline",
        "--isolated",
        "--no-sync",
        "--no-project",
        "--all-extras",
        "--no-capture-output",
        "--no-install",
    ]
)
"""Options of theirs that have no value."""

SEARCHERS: Final = frozenset({"rg", "fd", "fdfind"})
"""Programs that search, and run another one where an option says so."""
SEARCHERS_RUN: Final = frozenset({"-x", "-X", "--exec", "--exec-batch", "--pre", "--hostname-bin"})
"""Those options."""
RG_RUNS: Final = frozenset({"--pre", "--hostname-bin"})
"""Those of rg, whose ``-x`` asks for whole lines."""
SEARCHERS_CLUSTER: Final = r"-(?!-)[^xXetdESCcjo]*[xX]"
"""Short options that hold one of them, for fd."""

INTERPRETERS: Final = frozenset(
    [
        "python",
        "python2",
        "python3",
        "pypy",
        "pypy3",
        "node",
        "nodejs",
        "deno",
        "perl",
        "ruby",
        "php",
        "lua",
        "awk",
        "gawk",
        "mawk",
        "Rscript",
        "tclsh",
        "sed",
        "tar",
    ]
)
"""Programs whose own language is not read here, but for plain signs of destruction."""

PUBLISHING: Final = {
    "npm": (
        *("publish"[:end] for end in range(len("pu"), len("publish") + 1)),
        *("unpublish"[:end] for end in range(len("unp"), len("unpublish") + 1)),
        "dist-tag",
        "dist-tags",
        "deprecate",
    ),
    "cargo": ("publish", "yank"),
    **dict.fromkeys(
        ["pnpm", "yarn", "poetry", "uv", "flit", "hatch", "pdm", "bun", "lerna"], ("publish", "unpublish")
    ),
    "gem": ("push", "yank"),
    **dict.fromkeys(["mvn", "mvnw"], ("deploy",)),
    **dict.fromkeys(["gradle", "gradlew"], ("publish",)),
}
"""Sub-commands that put a package where others get it."""
TASKS: Final = frozenset({"mvn", "mvnw", "gradle", "gradlew"})
"""Programs of which every word may be a task of its own."""
PUBLISHING_TASK: Final = re.compile(
    r"(?:\A|:)(?:deploy|publish(?!\w*ToMavenLocal\b)\w*|uploadArchives)\Z", re.ASCII
)
NOT_PUBLISHING: Final = frozenset(
    [
        *("run", "run-script", "exec", "x", "dlx", "test", "t", "tst", "add", "install", "i", "build", "b"),
        *(
            "check",
            "clippy",
            "bench",
            "doc",
            "search",
            "view",
            "info",
            "why",
            "list",
            "show",
            "tree",
            "start",
        ),
    ]
)
"""Sub-commands after which a word is for them, whatever it says."""

SAID_FIRST: Final = frozenset({"sed", "awk", "gawk", "mawk", "tar"})
"""Interpreters whose program is always among their words."""
SAID_OPTIONS: Final = frozenset({"-c", "-e", "-m", "-p", "-V", "--version"})
"""Options of interpreters that say what they run."""

NETWORKED: Final = frozenset({"curl", "wget", "aria2c", "http", "https", "xh", "lynx", "fetch"})

UNSAFE_NAMES: Final = frozenset(
    [
        "BASH_ENV",
        "BASH_CMDS",
        "BASH_ALIASES",
        "CDPATH",
        "GLOBIGNORE",
        "SSH_ASKPASS",
        "XDG_CONFIG_HOME",
        "ENV",
        "SHELLOPTS",
        "BASHOPTS",
        "PS4",
        "PROMPT_COMMAND",
        "PAGER",
        "MANPAGER",
        "EDITOR",
        "VISUAL",
        "LESSOPEN",
        "LESSCLOSE",
        "NODE_OPTIONS",
        "PYTHONSTARTUP",
        "PERL5OPT",
        "PERL5LIB",
        "RUBYOPT",
        "JAVA_TOOL_OPTIONS",
        "BROWSER",
    ]
)
"""Names that make other programs run something."""
UNSAFE_PREFIXES: Final = ("GIT_", "LD_", "DYLD_", "STEPWISE_", "BASH_FUNC_")
HARMLESS_VALUES: Final = frozenset({"", "cat", "true", "0", "1"})
"""Values of pagers, editors and switches that run nothing new."""


def is_unsafe(name: str) -> bool:
    """Tell whether a name makes other programs run something."""
    return name in UNSAFE_NAMES or name.startswith(UNSAFE_PREFIXES)


FREE: Final = frozenset(
    [
        "ls",
        "cat",
        "head",
        "tail",
        "grep",
        "egrep",
        "fgrep",
        "wc",
        "pwd",
        "echo",
        "true",
        "false",
        "test",
        "[",
        ":",
        "stat",
        "du",
        "df",
        "basename",
        "dirname",
        "realpath",
        "readlink",
        "cut",
        "tr",
        "nl",
        "tac",
        "rev",
        "comm",
        "diff",
        "cmp",
        "column",
        "fold",
        "expand",
        "unexpand",
        "paste",
        "join",
        "seq",
        "whoami",
        "id",
        "uname",
        "which",
        "type",
        "printenv",
        "md5sum",
        "sha1sum",
        "sha256sum",
        "sha512sum",
        "b2sum",
        "cksum",
        "od",
        "hexdump",
        "strings",
        "jq",
        "sleep",
        "cd",
        "break",
        "continue",
        "exit",
        "return",
    ]
)
"""Programs that read whatever they are given."""

READ_ONLY_NAMES: Final = frozenset({"CI", "NO_COLOR", "LC_ALL", "IFS"})
"""Names that a session that only reads may set."""

ENDLESS: Final = re.compile(
    r"\b(?:while\s{1,20}(?::|true)|until\s{1,20}false)[ \t]{0,20}[;\n]\s{0,20}do\s[^;&\n]{1,500}&\s{0,20}done\b"
)
"""A loop without end of which every turn leaves a process behind."""

EMBEDDED: Final = re.compile(
    r"\brm(?:\s++-\S++)++\s++(?:[/~*]|\$HOME|\$\{HOME\}|\.\.)(?:[\s'\"/*;)]|$)"
    r"|:\s*\(\s*\)\s*\{\s*:\s*\|"
    r"|\bfork\b(?:\(\))?\s+while\b|\bwhile\s*(?:\(\s*)?(?:1|[Tt]rue)\b[\s:){]{0,20}(?:os\.)?fork\b"
    r"|\brmtree\(\s*r?['\"](?:[/~]|\.\.|\.git)['\"/]"
    r"|\bmkfs(?:\.\w+)?\s+/dev/"
    r"|\bof=/dev/(?!null|zero|stdout|stderr)"
    r"|\bgit\s+push\b[^\n]{0,200}(?:--force|\s-f\b)"
)
"""Plain signs of destruction in a text that some other language runs."""
