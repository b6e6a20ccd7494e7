"""Lists the benchmarks: each is a command, and `tests/benchmarks/results/` has figures with date, hardware and command.

python -m tests.benchmarks
"""

import argparse
import ast
import signal
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> None:
    """Print each command with the first sentence of its docstring."""
    purpose = (__doc__ or "").partition("\n\n")[0]
    argparse.ArgumentParser(prog="python -m tests.benchmarks", description=purpose).parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it
    for file in sorted(FOLDER.glob("*.py")):
        if file.name == "__main__.py":
            continue
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        print(f"python -m tests.benchmarks.{file.stem}\n    {said.partition(chr(10) * 2)[0]}")


if __name__ == "__main__":
    main()
