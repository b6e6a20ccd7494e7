#!/usr/bin/env bash
# `rollpacker gpu-check` as a job: sbatch [--gpus-per-node=N] slurm/gpu_check.sh [model.path=DIR] [rows=NAME,...]
#     [out=DIR]
#
# It takes .venv of the folder in which sbatch is given, else the `rollpacker` of PATH; with IMAGE=rollpacker.sif in the
# environment it runs in that image. Given again, it goes on where it stopped. Jobs that run at the same time each need
# an out of their own.
#SBATCH --job-name=gpu-check
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=00:40:00
#SBATCH --signal=B:TERM@60
set -euo pipefail
if [[ -n "${IMAGE:-}" ]]; then
    runtime="$(command -v apptainer || command -v singularity || echo apptainer)"
    exec "$runtime" exec --nv "$IMAGE" rollpacker gpu-check "$@"
fi
PATH="${SLURM_SUBMIT_DIR:-$PWD}/.venv/bin:$PATH" exec rollpacker gpu-check "$@"
