"""How long a process of an environment takes from its start to its first observation, and to its end.

    python -m tests.benchmarks.environment_starts [NUMBER]

The class is `walk_turns`, which imports next to nothing: a user's own imports come on top. One after the other, first
without isolation, then under bubblewrap; medians of NUMBER (20) and the slowest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

from rollpacker.environments.starting import EnvironmentStarter

WALK = "rollpacker.environments.walk_turns:WalkTurns"
RESET = json.dumps({"reset": {"seed": 1, "options": {"ground_truth": "3 12"}}})
LIMIT_S = 60.0


async def measure(starter: EnvironmentStarter) -> tuple[float, float]:
    """Seconds to the first observation, and to the end of all processes."""
    started_s = time.perf_counter()
    process = starter.start()
    answer = await process.request_once(RESET, LIMIT_S)
    assert answer["observation"] == ""
    begun_s = time.perf_counter()
    await process.end()
    return begun_s - started_s, time.perf_counter() - begun_s


def main(number: int) -> None:
    """Print a line per isolation."""
    for isolation in ("rlimits", "bubblewrap"):
        starter = EnvironmentStarter(WALK, {}, is_isolated=isolation == "bubblewrap")
        starts_s, ends_s = zip(*(asyncio.run(measure(starter)) for _ in range(number)), strict=True)
        print(
            f"{isolation}: first observation after {statistics.median(starts_s):.2f} s (at most {max(starts_s):.2f}), "
            f"ended after {statistics.median(ends_s):.3f} s (at most {max(ends_s):.3f})"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", metavar="NUMBER", nargs="?", type=int, default=20)
    main(parser.parse_args().number)
