"""A real run whose reward is a file of the user's."""

import statistics
import textwrap

import pytest

from tests.e2e.launched import LaunchedRun, rows, small_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MINE = """
import time

async def is_short(prompt, response, ground_truth, row, is_truncated):
    words = response.split()
    print("words:", len(words))
    if len(words) % 5 == 1:
        raise ValueError("a step without a number")
    if len(words) % 5 == 2:
        return float("nan")
    if len(words) % 5 == 3:
        time.sleep(1000)
    return {"score": len(words) < 20, "reason": "measured", "num_words": len(words)}
"""


def test_a_run_learns_from_a_function_that_fails_now_and_then_and_keeps_its_parts(inputs, tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))
    run = LaunchedRun(
        tmp_path / "run",
        *small_run(inputs, "system=verl", "engine.num_engines=1", "reward=math", "run.num_steps=2"),
        f"reward.parts={{brevity: {{function: '{tmp_path}/mine.py:is_short', weight: 0.5}}, accuracy: {{name: walk}}}}",
        *("reward.timeout_s=0.5", "reward.num_workers=2", "tracker.tensorboard=true"),
    )
    assert run.wait() == 0, run.output()
    responses = rows(run.run_dir, "responses")
    assert len(responses) == 2 * 8 * 4
    reasons = {row["reward_reason"] for row in responses}
    assert "measured" in reasons
    assert reasons <= {"measured", "checker_crashed", "not_finite", "timeout"}
    assert len(reasons) > 1
    for row in responses:
        parts = dict(row["reward_parts"])
        assert row["reward"] == pytest.approx(0.5 * parts["brevity"] + parts["accuracy"])
        assert ("brevity.num_words" in parts) == (row["reward_reason"] == "measured")
    failed = [row["reward_reason"] for row in responses if row["reward_reason"] != "measured"]
    assert sum(row["num_rewards_failed"] for row in rows(run.run_dir, "steps")) == len(failed)
    assert "32 rewards of step " in run.output()
    assert "words: " in (run.run_dir / "logs" / "attempt-000" / "reward.log").read_text()
    for row in rows(run.run_dir, "domains"):
        own = [dict(each["reward_parts"]) for each in responses if each["step"] == row["step"] and each["accepted"]]
        for part, mean in dict(row["reward_parts_mean"]).items():
            assert mean == pytest.approx(statistics.fmean(parts[part] for parts in own if part in parts))
    run.assert_nothing_is_left()
