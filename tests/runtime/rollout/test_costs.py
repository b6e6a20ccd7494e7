"""What the scheduler is told of a round's costs."""

from types import SimpleNamespace

from rollpacker.core.ids import EngineId
from rollpacker.protocols.engine import EngineStats
from rollpacker.runtime.rollout.costs import RoundCosts, measurements

LOCAL, MEMBER = EngineId("engine-0"), EngineId("e7_0-r0.0")


def test_the_planner_hears_of_preemptions_on_engines_whose_degree_it_chooses():
    costs = RoundCosts(
        tensor_parallel=1,
        escalated_from=None,
        num_engines=2,
        parallelism_gain=None,
        num_engines_lent=0,
        before={LOCAL: stats(2), MEMBER: stats(5)},
        after={LOCAL: stats(3), MEMBER: stats(25)},
    )
    batch = SimpleNamespace(
        begin=SimpleNamespace(round=0),
        began_at_s=0.0,
        generated_at_s=1.0,
        ended_at_s=1.0,
        num_needed_tokens=10,
        requests={},
    )
    (measured,) = measurements(batch, costs, 0.0)
    assert measured.num_preemptions == 1
    assert costs.growth("num_preemptions") == 21, "of all, for the metrics"


def stats(num_preemptions: int) -> EngineStats:
    return SimpleNamespace(num_preemptions=num_preemptions, draft_passes=())
