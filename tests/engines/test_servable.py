"""Models that the torch engine cannot serve are refused at once, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from rollpacker.core.errors import ModelError
from tests.engines.tiny import VOCABULARY, make_decoder, make_model, make_model_of, make_request, run_all


def test_a_model_whose_state_is_unknown_is_refused_at_once() -> None:
    model = make_model("falcon_h1")
    with pytest.raises(ModelError, match="falcon_h1"):
        make_decoder(model)


_SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (transformers.MambaConfig(**_SMALL, state_size=4), "takes no past_key_values"),
        (
            transformers.OpenAIGPTConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4),
            "takes no past_key_values",
        ),
        (transformers.RwkvConfig(**_SMALL, attention_hidden_size=32), "takes no past_key_values"),
        (
            transformers.RecurrentGemmaConfig(**_SMALL, num_attention_heads=4, num_key_value_heads=2, lru_width=32),
            "does not keep its state in past_key_values",
        ),
        (
            transformers.PegasusConfig(vocab_size=VOCABULARY, d_model=32, decoder_layers=2, decoder_attention_heads=4),
            "takes no position_ids",
        ),
        (
            transformers.MiniMaxConfig(**_SMALL, num_attention_heads=4, num_key_value_heads=2, num_local_experts=2),
            "says: MiniMax uses cache of its own",
        ),
        (transformers.RobertaConfig(**_SMALL, num_attention_heads=4, is_decoder=True), "counts positions from"),
        *(
            (encoder(**_SMALL, num_attention_heads=4), "lets a token see later ones")
            for encoder in (
                transformers.BertConfig,
                transformers.BertGenerationConfig,
                transformers.BigBirdConfig,
                transformers.ElectraConfig,
                transformers.ErnieConfig,
                transformers.MegatronBertConfig,
                transformers.RoCBertConfig,
            )
        ),
    ],
    ids=lambda each: getattr(each, "model_type", None),
)
def test_a_model_that_would_draw_without_the_cache_or_at_other_positions_is_refused_at_once(
    config: Any, what: str
) -> None:
    with pytest.raises(ModelError, match=f"cannot serve a {config.model_type} model: .*{what}"):
        make_decoder(make_model_of(config))


@pytest.mark.parametrize(
    "config",
    [
        transformers.BertConfig(**_SMALL, num_attention_heads=4, is_decoder=True),
        transformers.GPTNeoXConfig(**_SMALL, num_attention_heads=4),  # causal whatever its `is_decoder`, which is false
    ],
    ids=lambda each: each.model_type,
)
def test_a_causal_model_is_served_whatever_its_configuration_calls_it(config: Any) -> None:
    assert len(run_all(make_decoder(make_model_of(config)), [make_request()])) == 1
