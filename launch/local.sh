#!/usr/bin/env bash
# Several processes on this machine, as on several hosts. Results do not change.
#   launch/local.sh 2 --out runs/two --corpus docs
# If killed or interrupted, the same command with --resume continues. Set PYTHON for an interpreter other than .venv/bin/python.
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
# If one fails, the others would wait for it: end them.
for _ in "${pids[@]}"; do wait -n || exit; done
