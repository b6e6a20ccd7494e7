"""What Hydra finds when the package is installed. Another program's Hydra finds it, too, so it must cost nothing."""

import json
import subprocess
import sys
from pathlib import Path

FIND = """
import json, sys
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
found = [f"{plugin.__module__}.{plugin.__name__}" for plugin in Plugins.instance().discover(Launcher)]
loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"rollpacker", "torch", "ray", "submitit", "rich"})
print(json.dumps([found, loaded]))
"""


def test_hydra_finds_the_launcher_and_loads_nothing_for_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIND], cwd=tmp_path, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin"}
    )
    found, loaded = json.loads(done.stdout)
    assert "hydra_plugins.rollpacker_slurm.launcher.SlurmLauncher" in found
    assert "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher" in found  # the stock one stays
    assert loaded == []
    assert done.stderr == ""
