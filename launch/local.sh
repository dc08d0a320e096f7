#!/usr/bin/env bash
# Several processes on this machine, as many hosts would run them. Results do not change.
#   launch/local.sh 2 --out runs/two --corpus docs
# Killed or interrupted, the same command with --resume goes on. PYTHON names another interpreter than .venv/bin/python.
set -euo pipefail
processes=${1:?usage: launch/local.sh PROCESSES [flags of launch.lm]}
shift
python=${PYTHON:-.venv/bin/python}
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("localhost", 0)); print(s.getsockname()[1])')
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
for ((i = 0; i < processes; i++)); do
  "$python" -m launch.lm "$@" --coordinator "localhost:$port" --num-processes "$processes" --process-id "$i" &
  pids+=($!)
done
# The first one that fails ends the others, which would wait for it.
for _ in "${pids[@]}"; do wait -n || exit; done
