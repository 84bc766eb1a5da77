#!/usr/bin/env bash
# The tests of the alerts need promtool. On Debian and Ubuntu it is unpacked into .venv if there is none.
set -euo pipefail
target=$1
command -v promtool >/dev/null && exec ln -sf "$(command -v promtool)" "$target"
[ -x "$target" ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "Install promtool, which comes with Prometheus, for the tests of the alerts." >&2
  exit 1
fi
echo "Fetching promtool, for the tests of the alerts."
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
chmod 1777 "$directory" # apt fetches as a user of its own
(cd "$directory" && apt-get download -qq prometheus)
dpkg --extract "$directory"/prometheus_*.deb "$directory"
install "$directory/usr/bin/promtool" "$target"
