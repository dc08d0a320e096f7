#!/usr/bin/env bash
# One process per host of a Cloud TPU slice; JAX reads process ids and addresses from the slice.
#   TPU=my-slice ZONE=us-east5-a launch/tpu.sh --corpus shards:/mnt/text --out /mnt/run
# Every host needs this repository in ~/jexplicit with `pip install -e '.[tpu]'` in its .venv, and the same /mnt (Filestore, or a
# bucket through gcsfuse for the shards). After a preemption the same command continues.
set -euo pipefail
: "${TPU:?name of the TPU slice}" "${ZONE:?its zone}"
flags=$(printf ' %q' "$@")
gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all \
  --command="cd jexplicit && .venv/bin/python -m launch.lm$flags --coordinator auto --resume"
