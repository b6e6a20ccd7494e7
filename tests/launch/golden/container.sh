#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=96
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=rollpacker-sweep
#SBATCH --mem=0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/sweep/.submitit/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=URG@120

# setup
export SLURM_EXPORT_ENV=ALL # a job that got no environment (SBATCH_EXPORT=NONE) would pass none to its ranks
unset "${!SRUN_@}" # srun would prefer them, SRUN_EXPORT_ENV to the line above
export PATH="$PATH:/usr/local/bin:/usr/bin:/bin" # where it was submitted from, there may be no other command than sbatch
unset SLURM_JWT # the login of sbatch, which would expire in the job; nodes have their own
set +eu +o pipefail # whatever the setup has set: a failed srun does not end the script
unset "${!SQUEUE_@}" "${!SCANCEL_@}" # they would choose what squeue shows and scancel ends
ROLLPACKER_JOB_END="$(SLURM_TIME_FORMAT=%s squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e | head -n 1)"
[[ "$ROLLPACKER_JOB_END" =~ ^[0-9]+$ ]] || ROLLPACKER_JOB_END="" # no limit
if [[ "$(scontrol show config)" == *preempt/qos* ]]; then # the partition then says nothing of it
    ROLLPACKER_GRACE_S="" # not known, unless accounting answers
    if [[ "$(timeout 10 sacctmgr --noheader --parsable2 show qos where name="${SLURM_JOB_QOS:-}" format=GraceTime)" =~ ^(([0-9]+)-)?([0-9]+):([0-9]+):([0-9]+)$ ]]; then
        ROLLPACKER_GRACE_S=$((((10#${BASH_REMATCH[2]:-0} * 24 + 10#${BASH_REMATCH[3]:-0}) * 60 + 10#${BASH_REMATCH[4]:-0}) * 60 + 10#${BASH_REMATCH[5]:-0}))
    fi
else
    ROLLPACKER_GRACE_S="$(scontrol show partition "$SLURM_JOB_PARTITION" | sed -n 's/.*GraceTime=\([0-9]*\).*/\1/p')"
fi
export ROLLPACKER_JOB_END ROLLPACKER_GRACE_S
export ROLLPACKER_REQUEUE_FILE=/shared/runs/sweep/.submitit/"$SLURM_JOB_ID.requeue"
rm --force "$ROLLPACKER_REQUEUE_FILE"

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/runs/sweep/.submitit/%j_%t_log.out --open-mode=append --cpus-per-task=96 --kill-on-bad-exit=0 --wait=0 bash -c 'set -euo pipefail
expand() { # PATH with $NAME or ${NAME} in it; fails where one is unset or empty
    local rest="$1" expanded="" name
    while [[ "$rest" =~ ^([^$]*)\$\{?([A-Za-z_][A-Za-z_0-9]*)\}?(.*)$ ]]; do
        name="${BASH_REMATCH[2]}" rest="${BASH_REMATCH[3]}"
        [[ -n "${!name:-}" ]] || return 1
        expanded+="${BASH_REMATCH[1]}${!name}"
    done
    printf '"'"'%s'"'"' "$expanded$rest"
}
can_hold_files() { mkdir -p "$1" && [[ -O "$1" && ! -L "$1" ]] && chmod 700 "$1" && [[ -w "$1" ]]; } 2>/dev/null
runtime="$1" private="" refused=()
while shift && [[ "$1" != -- ]]; do
    if [[ -n "$private" ]]; then continue; fi
    if folder="$(expand "$1")" && can_hold_files "$folder/rollpacker-$UID"; then
        private="$folder/rollpacker-$UID"
    else
        refused+=("$1")
    fi
done
if [[ -z "$private" ]]; then
    printf '"'"'%s\n'"'"' "On ${HOSTNAME:-this node} no folder of cluster.scratch holds files: ${refused[*]}." \
        "One is needed that is set there, writable, and on the node itself." "Put one in front, such as cluster.scratch=[/tmp]." >&2
    exit 1
fi
binds=(--bind "$private:/tmp")
if [[ -d /dev/infiniband ]]; then binds+=(--bind /dev/infiniband); fi
while shift && [[ "$1" != -- ]]; do
    IFS=: read -r source target _ <<<"$1"
    if [[ "$target" == /tmp/* ]]; then # what is bound below a bound folder needs its place there
        place="$private/${target#/tmp/}"
        if [[ -d "$source" ]]; then mkdir -p "$place"; else mkdir -p "$(dirname "$place")" && touch "$place"; fi
    fi
    binds+=(--bind "$1")
done
shift
exec "$runtime" exec "${binds[@]}" "$@"
' container apptainer '$SLURM_TMPDIR' '$TMPDIR' /tmp -- /dev/shm:/dev/shm /shared/models/qwen:/shared/models/qwen:ro /shared/prompts.jsonl:/shared/prompts.jsonl:ro /shared/runs/sweep:/shared/runs/sweep /data:/data:ro -- --nv /shared/rollpacker.sif env TMPDIR=/tmp PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1 PYTHONPATH= HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_CACHE_ROOT=/tmp/cache/vllm TRITON_CACHE_DIR=/tmp/cache/triton TORCHINDUCTOR_CACHE_DIR=/tmp/cache/torchinductor CUDA_CACHE_PATH=/tmp/cache/cuda FLASHINFER_WORKSPACE_BASE=/tmp/cache NCCL_DEBUG=WARN RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1 python3 -P -u -m submitit.core._submit /shared/runs/sweep/.submitit


# teardown
exit_code=$?
deadline=$((SECONDS + 150))
while true; do
    state="$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" || state=RUNNING
    [[ -e "$ROLLPACKER_REQUEUE_FILE" && "${state%%$'\n'*}" == RUNNING ]] || break
    answer="$(scontrol requeue "$SLURM_JOB_ID" 2>&1)" && sleep 60 && break
    if [[ "$answer" == *disabled* || "$answer" == *denied* || "$answer" == *Invalid* ]] || ((SECONDS >= deadline)); then
        echo "Slurm has not requeued job $SLURM_JOB_ID: $answer"
        break
    fi
    sleep 5
done
exit "$exit_code"
