"""What this package starts imports nothing from the folder that its user happens to be in: no `queue.py`, no `ray/`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
STARTS_A_MODULE = re.compile(r'\[(sys\.executable|\*?python), .*"-m"')


def test_python_is_started_on_a_module_without_the_working_directory_in_its_path():
    files = [path for folder in ("rollpacker", "analysis", "slurm") for path in (ROOT / folder).rglob("*.py")]
    lines = [(path.name, line.strip()) for path in files for line in path.read_text().splitlines()]
    starts = [(name, line) for name, line in lines if STARTS_A_MODULE.search(line)]
    assert len(starts) >= 10, "the pattern finds what is written here"
    assert [(name, line) for name, line in starts if '"-P", ' not in line] == []
