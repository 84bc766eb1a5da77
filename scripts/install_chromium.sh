#!/usr/bin/env bash
# The browser tests need Chromium or Chrome. On Debian and Ubuntu it is installed here if there is none.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null && exit 0
done
if ! command -v apt-get >/dev/null; then
  echo "Install Chromium or Chrome, for the browser tests." >&2
  exit 1
fi
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
echo "Installing chromium, for the browser tests."
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
