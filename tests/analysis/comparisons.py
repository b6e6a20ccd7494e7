"""Runs that are compared, and their rows."""

from rollpacker.analysis.compare.columns import columns_of
from rollpacker.analysis.compare.numbers import rows_of
from rollpacker.analysis.compare.scores import scores_of
from rollpacker.analysis.runs import read_runs, shared_steps
from tests.analysis.written_runs import write_run

SHORT_AND_LONG = [1.0, 1.0, 1.0, 1.0, 4.0] * 2


def write(folder, system, rollout_times, **values):
    """A run with a second of training in each step."""
    rewards = [step / 10 for step in range(len(rollout_times))]
    return write_run(folder, system, [time + 1 for time in rollout_times], reward_mean=rewards, **values)


def compared(*folders):
    """The rows by their titles, and the columns."""
    runs, problems = read_runs(folders)
    assert not problems
    columns = columns_of(runs)
    rows = rows_of(columns, scores_of(columns), shared_steps(runs))
    return {row.title: row for row in rows}, columns
