#!/bin/bash

# Parameters
#SBATCH --constraint=h800
#SBATCH --cpus-per-task=96
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=rollpacker-sweep
#SBATCH --mem=0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/sweep/.submitit/%j_0_log.out
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --signal=URG@120
#SBATCH --time=1440

# setup
#SBATCH hetjob
#SBATCH --account=sandboxes
#SBATCH --cpus-per-task=8
#SBATCH --job-name=rollpacker-sweep
#SBATCH --licenses=x:8
#SBATCH --mem=61035M
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --partition=cpu
#SBATCH --requeue
#SBATCH --signal=URG@120
#SBATCH --time=1440

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
srun --unbuffered --output /shared/runs/sweep/.submitit/%j_%t_log.out --het-group=0 --open-mode=append --cpus-per-task=96 --kill-on-bad-exit=0 --wait=0 /shared/venv/bin/python -P -u -m submitit.core._submit /shared/runs/sweep/.submitit : --het-group=1 --output=/shared/runs/sweep/.submitit/"$SLURM_JOB_ID"_%N_environments.out --open-mode=append --cpus-per-task=8 --kill-on-bad-exit=0 --wait=0 /shared/venv/bin/python -P -u -m submitit.core._submit /shared/runs/sweep/.submitit


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
