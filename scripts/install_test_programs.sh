#!/usr/bin/env bash
# What some tests drive beside the service: nginx, and the aws program in an environment of its own, as it
# wants older packages than the service. Tests without their program are skipped.
set -euo pipefail
environment=$1/aws programs=$1/programs
if ! [ -x "$programs/aws" ]; then
  "$1/bin/python" -m venv "$environment"
  "$environment/bin/pip" install --quiet 'awscli>=1.45,<2'
  mkdir -p "$programs"
  ln -sf ../aws/bin/aws "$programs/aws" # alone: the Python beside it is for nobody else
fi
if ! command -v nginx >/dev/null && command -v apt-get >/dev/null; then
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  echo "Installing nginx, for the tests of the proxy."
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx-light >/dev/null
fi
