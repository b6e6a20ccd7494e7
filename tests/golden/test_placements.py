"""The recorded table of what is chosen on 1 to 8 GPUs, and what must hold of each of its lines."""

from pathlib import Path

import pytest

from rollpacker.core.errors import UserError
from rollpacker.runtime.placing.gpus import Gpus
from tests.golden.placements import CARDS_GB, MODELS, NUMBERS, choose, peak_bytes, table, write_models

RECORDED = Path(__file__).parent / "recorded" / "placements.txt"


def test_well_known_models_are_placed_as_recorded(tmp_path):
    assert table(tmp_path) == RECORDED.read_text()


@pytest.mark.parametrize("card", CARDS_GB)
def test_nothing_that_is_chosen_is_above_the_card_and_every_refusal_says_why(tmp_path, card):
    refused = []
    for name, model in write_models(tmp_path).items():
        for number in NUMBERS:
            try:
                config = choose(model, Gpus(per_node=number, num_bytes=card * 1e9, has_vllm=True))
            except UserError as error:
                refused.append(str(error))
                continue
            assert max(peak_bytes(config, card * 1e9)) < card * 1e9, (name, number)
            assert config.engine.num_engines * config.engine.tensor_parallel == number
            assert (config.engine.name, config.trainer.num_ranks) == ("vllm", number)
    assert 0 < len(refused) < len(MODELS) * len(NUMBERS)
    assert all("by an estimate" in why or "Mixture of Experts" in why for why in refused)
