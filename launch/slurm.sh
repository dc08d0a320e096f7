#!/usr/bin/env bash
#SBATCH --job-name=jexplicit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Processes on the nodes of a SLURM cluster, one on each unless you say otherwise; JAX reads process ids and addresses from SLURM.
#   sbatch launch/slurm.sh --corpus shards:/shared/text --out /shared/run
# With N GPUs on a node add --gres=gpu:N --ntasks-per-node=N, a process for each: JAX gives a process one GPU.
#   sbatch --gres=gpu:8 --ntasks-per-node=8 --cpus-per-task=8 launch/slurm.sh --corpus shards:/shared/text --out /shared/run
# Put --out and the shards on a file system shared by all nodes.
# A job that was preempted or ran out of time continues after its finished counts and rows: submit it again unchanged.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
srun --kill-on-bad-exit=1 "${PYTHON:-.venv/bin/python}" -m launch.lm "$@" --coordinator auto --resume
