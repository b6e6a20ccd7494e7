"""What a batch says of its responses."""

from dataclasses import replace

from rollpacker.core.ids import VersionSpan
from rollpacker.runtime.run.recorder import StepRecorder, StepResult
from tests.runtime.driving import driving
from tests.runtime.scripted import ScriptedEngine


class Anything:
    """Has every attribute; the others are 0."""

    lost = ()

    def __getattr__(self, name):
        return 0


async def test_staleness_is_the_mean_over_trained_tokens_and_the_age_of_the_oldest(tmp_path):
    async with driving(tmp_path, [ScriptedEngine("engine-0", lambda _: 1)]) as driver:
        batch = await driver.next_batch(0)
        await driver.quiesce()
        costs = await driver.measure_round()
        turnover = driver.turnover()
    batch.policy_version = 5
    for record in batch.requests.values():
        record.response = replace(record.response, spans=(VersionSpan(5, 3),))
    first, second = [record for record in batch.requests.values() if record.is_accepted][:2]
    first.response = replace(first.response, spans=(VersionSpan(2, 1), VersionSpan(4, 2)))
    assert batch.ages(first) == [(3, 1), (1, 2)]
    assert batch.ages(second) == [(0, 3)]

    recorder = StepRecorder(step=0, system="verl", clock=driver._clock, is_modelled=False)
    result = StepResult(update=Anything(), costs=costs, published=Anything(), num_tokens_streamed=0, turnover=turnover)
    with recorder.stage("rollout"):
        pass
    row = recorder.step_row(batch, result, [])
    num_trained = 3 * sum(record.is_accepted for record in batch.requests.values())
    assert (row["staleness_mean"], row["staleness_max"]) == ((3 * 1 + 1 * 2) / num_trained, 3)
    assert row["tokens_by_staleness"] == {"0": num_trained - 3, "1": 2, "3": 1}
    [domain] = recorder.domain_rows(batch)
    assert (domain["staleness_mean"], domain["staleness_max"]) == (row["staleness_mean"], 3)
    assert (row["policy_version"], row["num_engines"]) == (5, 1)
    assert row["bubble_ratio"] is None, "no engine decoded: there are no slots that could be idle"
    rows = {(row["prompt"], row["sample"]): row for row in recorder.response_rows(batch, {})}
    row = rows[first.request.prompt.key, first.request.sample]
    assert (row["first_policy_version"], row["policy_version"]) == (2, 4)
