#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=1
#SBATCH --job-name=rollpacker-sweep
#SBATCH --no-requeue
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/sweep/.submitit/%j_0_log.out
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
unset ROLLPACKER_REQUEUE_FILE

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/runs/sweep/.submitit/%j_%t_log.out --open-mode=append --cpus-per-task=1 --kill-on-bad-exit=0 --wait=0 /shared/venv/bin/python -P -u -m submitit.core._submit /shared/runs/sweep/.submitit


# teardown
exit $?
