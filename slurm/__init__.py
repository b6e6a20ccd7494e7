"""Scripts that run on cluster nodes, the package's launcher for Hydra, and a mini cluster for tests and the demo.

The mini cluster (`mini_*.py`) needs the standard library only; `demo.py` and `hydra_plugins` import the package.

**Launching.** `rollpacker train -m hydra/launcher=slurm cluster=NAME ...` makes a job of each point of a multirun. Each
point asks for what its own section `cluster` says; points that ask for the same share a job array. Partitions, GPUs,
time limits, the image and whether `run.dir` is shared are validated first, and nothing is submitted if one does not
fit. The launch shows a live table until the last job has ended; `hydra.launcher.detach=true` returns at once,
`hydra.launcher.dry_run=true` prints the scripts and the placement of actors, `hydra.launcher.executor=local` runs the
points as processes of this machine. The same command can be given again at any time: finished points are skipped,
waiting and running ones are not submitted again, and the others resume from their last checkpoint.

**Nodes.** A job has one process per node, and one Ray spans them: rank 0 runs the driver, the others provide their
nodes. Unless `placement` says otherwise, trainer and reward work on the first node and engines spread evenly over all.
CPUs, GPUs and memory are what Slurm gave, ports and token are the job's own, so jobs on the same nodes do not
interfere. A node that does not join, or is lost, is reported with the end of its log (`<run.dir>/jobs/`), and the job
of a run that needs a lost node is requeued; an engine that dies alone is replaced. `logs/attempt-NNN/startup.json` has
the duration of each phase of the start. By hand, `srun -N2 --ntasks-per-node=1 rollpacker train ...` does the same.
With `cluster.environment_nodes.num_nodes=N cluster.environment_nodes.partition=CPU` the job has N further nodes, on
which environments run and nothing else: the second component of a heterogeneous job. Slurm preempts it only if both
partitions are preempted in the same way.

**Preemption and time limits.** A run ends when Slurm signals it: after the current step or, when too little time is
left for it, at once with a checkpoint of the step's beginning. The batch script requeues the job, and the run resumes:
same folder, same tracker run, logs and event log per attempt. A step that cannot end before the time limit is not
started, except the first of an attempt. `scancel --signal=URG JOB` ends a run in this way. Where only SIGTERM comes, or
no signal, as when a node dies or Ray ends on it, the run resumes from the checkpoints of `run.checkpoint_every_steps`.
After `cluster.max_attempts_without_progress` attempts in a row without a new checkpoint the job fails, and reports
which time was too short or what died. `<run.dir>/status.json` has the state of a run.

**In a container.** `slurm/build_image.sh rollpacker.sif` builds the image of `Singularity.def` with Apptainer, from the
registries that your pip is configured for, with the trackers, vLLM and Megatron-core unless `--extras` says otherwise
(`--base debian` takes vLLM's build for processors); a name without `.sif` makes an unpacked image, which the nodes need
not mount. `hydra.launcher.container=rollpacker.sif` then runs every rank in it, with the run's folder, model, prompts,
`/dev/shm`, InfiniBand and the node's scratch as `/tmp`; `conf/cluster/slurm.yaml` spells out binds and environment.
Keep `cluster.signal=URG` with a SIF: USR2 and TERM end its mount. `slurm/install_apptainer.sh` installs
Apptainer on Debian.

**Proof on GPUs.** `sbatch --gpus-per-node=N slurm/gpu_check.sh` runs `rollpacker gpu-check` on a node: what only GPUs
can show, row by row, and figures. Given again, it goes on where it stopped.

**Without a cluster.** `make slurm-demo` (Debian, as root) installs Slurm, starts a real cluster of two nodes on this
machine, runs the demo's two systems on it as jobs of two nodes each, prints the table, and stops the cluster.
`python3 -m slurm.mini_cluster start` starts such a cluster: with accounting, fake GPUs, and
partitions whose jobs are preempted by requeue (`low`) or by cancel (`lowcancel`).
"""
