"""What holds of every run that was trained to the end of its epoch, whatever was killed meanwhile."""

from pathlib import Path

from rollpacker.runtime.replay import replay
from tests.e2e.launched import rows, trained_prompts


def assert_each_step_once(run_dir: Path) -> None:
    steps = [row["step"] for row in rows(run_dir, "steps")]
    assert sorted(steps) == list(range(len(steps)))
    assert {row["step"] for row in rows(run_dir, "responses")} == set(steps)


def assert_each_prompt_was_trained_once(run_dir: Path, num_prompts: int) -> None:
    trained = trained_prompts(run_dir)
    assert len(trained) == num_prompts
    assert len(set(trained)) == num_prompts


def assert_on_policy(run_dir: Path) -> None:
    """Every row is of the policy that its step began with, and the trainer found the engines' probabilities its own."""
    assert all(row["policy_version"] == row["step"] for row in rows(run_dir, "responses"))
    assert all(row["policy_version"] == row["step"] for row in rows(run_dir, "steps"))
    assert all(row["logprob_mismatch_max"] < 1e-4 for row in rows(run_dir, "steps"))


def assert_all_holds(run_dir: Path, num_prompts: int) -> None:
    """The above, every table can be read, and the event log of each attempt gives the same commands again."""
    assert_each_step_once(run_dir)
    assert_each_prompt_was_trained_once(run_dir, num_prompts)
    assert_on_policy(run_dir)
    for table in sorted(path.name for path in (run_dir / "metrics").iterdir() if path.is_dir()):
        assert rows(run_dir, table), f"{table} is empty"
    replay(run_dir)
