#!/bin/bash
#SBATCH --array=0-31%1
#SBATCH --cpus-per-task=8
#SBATCH --dependency=after:4711
#SBATCH --gpus-per-node=1
#SBATCH --job-name=workers-sweep
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --licenses=elastic:1
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/sweep/%A_%a_worker.out
#SBATCH --partition=spare
#SBATCH --requeue
#SBATCH --signal=URG@120
#SBATCH --time=240
#SBATCH --time-min=30

job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
export SLURM_EXPORT_ENV=ALL # a job that got no environment (SBATCH_EXPORT=NONE) would pass none to its ranks
unset "${!SRUN_@}" # srun would prefer them, SRUN_EXPORT_ENV to the line above
export PATH="$PATH:/usr/local/bin:/usr/bin:/bin" # where it was submitted from, there may be no other command than sbatch
unset SLURM_JWT # the login of sbatch, which would expire in the job; nodes have their own
set +eu +o pipefail # whatever the setup has set: a failed srun does not end the script
unset "${!SQUEUE_@}" "${!SCANCEL_@}" # they would choose what squeue shows and scancel ends
ROLLPACKER_JOB_END="$(SLURM_TIME_FORMAT=%s squeue --noheader --jobs="$job" --format=%e | head -n 1)"
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
export ROLLPACKER_ELEMENT="$job"
num_waits=0 num_failed_joins=0
while :; do
    srun --open-mode=append --cpus-per-task=8 --kill-on-bad-exit=0 /shared/venv/bin/python -P -u -m rollpacker.launch.worker /shared/runs/sweep
    exit_code=$?
    [[ "$exit_code" =~ ^(10|75|76|77)$ ]] || exit "$exit_code"
    state="$(squeue --noheader --jobs="4711" --format=%T 2>&1)" && is_told=true || is_told=false
    [[ "$state" == *"Invalid job id"* ]] && is_told=true # Slurm has forgotten it
    if $is_told && [[ ! "$state" =~ COMPLETING|CONFIGURING|PENDING|POWER_UP_NODE|REQUEUED|REQUEUE_FED|REQUEUE_HOLD|RESIZING|RESV_DEL_HOLD|RUNNING|SIGNALING|SPECIAL_EXIT|STAGE_OUT|STOPPED|SUSPENDED|UPDATE_DB ]]; then
        scancel "$SLURM_ARRAY_JOB_ID"
        exit 0
    fi
    if [[ "$exit_code" == 10 ]]; then # it may return
        deadline=$((SECONDS + 150))
        while true; do
            answer="$(scontrol requeue "$job" 2>&1)" && sleep 60 && break
            if [[ "$answer" == *disabled* || "$answer" == *denied* || "$answer" == *Invalid* ]] || ((SECONDS >= deadline)); then
                echo "Slurm has not requeued job $job: $answer"
                break
            fi
            sleep 5
        done
        exit 0
    fi
    case "$exit_code" in
        75) ((++num_waits)) ;; # no run takes it
        76) num_waits=0 num_failed_joins=0 ;; # one had until a moment ago
        77) ((++num_failed_joins)) ;; # its Ray ended before it had joined
    esac
    if ((num_waits >= 8 || num_failed_joins >= 3)); then # it frees the node
        deadline=$((SECONDS + 150))
        while true; do
            answer="$(scontrol requeuehold "$job" 2>&1)" && sleep 60 && break
            if [[ "$answer" == *disabled* || "$answer" == *denied* || "$answer" == *Invalid* ]] || ((SECONDS >= deadline)); then
                echo "Slurm has not requeued job $job: $answer"
                break
            fi
            sleep 5
        done
        exit 0
    fi
    sleep 5
done
