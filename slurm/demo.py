"""`python -m slurm.demo [KEY=VALUE...]`: the demo as jobs of a Slurm cluster that lives as long as the demo.

It starts a mini cluster of two nodes, gives `rollpacker demo` the overrides that make its multirun two jobs of two
nodes each, one after the other, and stops the cluster. Needs root, and what `make slurm` installs. Ctrl-C ends it all.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence

from rollpacker.config.words import replaced
from slurm.mini_cluster import MiniCluster
from slurm.mini_daemons import DaemonError, bound
from slurm.mini_machine import ClusterUnavailableError

OVERRIDES = (
    "hydra/launcher=slurm",
    "hydra.launcher.array_parallelism=1",  # both at once would slow each other down on the one machine below
    "hydra.launcher.poll_interval_s=2",
    "cluster=mini",
    "engine.num_engines=2",  # one on each node
    "run.num_steps=10",  # two cycles of short and long rounds
)
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


def main(overrides: Sequence[str]) -> int:
    """Run the demo on a cluster of its own; returns the process exit code, which is the demo's."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with MiniCluster() as cluster:
            print(f"A Slurm cluster of {cluster.shape.nodes} nodes runs on this machine.")
            print(f"See it from elsewhere:  SLURM_CONF={cluster.environment['SLURM_CONF']} squeue", flush=True)
            code = _run_demo(replaced(OVERRIDES, overrides), cluster)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except (ClusterUnavailableError, DaemonError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("The cluster has stopped, and its jobs with it.")
    return code


def _run_demo(overrides: Sequence[str], cluster: MiniCluster) -> int:
    command = [sys.executable, "-P", "-m", "rollpacker.cli", "demo", *overrides]
    demo = subprocess.Popen(bound(command), env=cluster.environment)
    try:
        return demo.wait()
    except KeyboardInterrupt:
        demo.wait()  # Ctrl-C reached it too, and it puts its own things in order
        raise
    finally:
        demo.kill()
        demo.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
