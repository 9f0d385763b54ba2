#!/bin/sh
# Installs Chromium for the tests of the Temporal UI, where it is missing. They are skipped without it.
set -eu

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done

if ! command -v apt-get >/dev/null 2>&1; then
    echo "install_browser: no chromium and no apt-get here: install Chromium by hand, or the tests of the Temporal UI are skipped" >&2
    exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "install_browser: no chromium, and installing it needs root: run 'sudo apt-get install chromium'" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
# the package lists of a fresh machine may be empty or old
if ! { $as_root apt-get -qq update && $as_root apt-get -qq install --yes --no-install-recommends chromium; } >/dev/null; then
    echo "install_browser: apt-get could not install chromium; the tests of the Temporal UI are skipped" >&2
    exit 1
fi
