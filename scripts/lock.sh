#!/usr/bin/env bash
# Write constraints.txt: what pip chooses today in an empty environment.
set -euo pipefail
python=${1:-python3}
torch=$(sed -n 's/^torch==//p' constraints.txt)
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"$python" -m venv "$venv"
# torch keeps its exact version: a looser pin may bring another build with gigabytes of libraries.
"$venv/bin/pip" install --quiet "torch==$torch" hatchling '.[dev,mlflow,s3,server,simulator,tensorboard,trainer]'
{
  echo "# Exact versions of every package, so that two installs are the same. Made by 'make lock'."
  "$venv/bin/pip" freeze --exclude fedcs-operator | sed 's/+cpu$//' | sort -f
} > constraints.txt
