"""Sizes that a model directory gives by its weights, where config.json leaves them to transformers' defaults."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollpacker.config.compose import compose
from rollpacker.data.shapes import transformer_of

SIZES = {
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 16,
}
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def is_tied(folder, *tables, **config):
    (folder / "config.json").write_text(json.dumps(SIZES | config))
    layer = {"model.layers.0.mlp.gate_proj.weight": np.zeros((32, 8), np.float32)}
    if tables:
        save_file(layer | {name: np.zeros((16, 8), np.float32) for name in tables}, folder / "model.safetensors")
    model = transformer_of(compose([f"model.path={folder}", "backend=sim", "run.dir=x"]).model)
    return model.num_embedding_parameters == 16 * 8


@pytest.mark.parametrize(("tables", "tied"), [([EMBEDDING], True), ([EMBEDDING, OUTPUT], False), ([], False)])
def test_embeddings_of_which_the_configuration_says_nothing_are_tied_where_the_weights_have_one_table(
    tmp_path, tables, tied
):
    assert is_tied(tmp_path, *tables) is tied


def test_the_configuration_says_whether_embeddings_are_tied_before_the_weights_do(tmp_path):
    assert is_tied(tmp_path, EMBEDDING, OUTPUT, tie_word_embeddings=True)
    assert not is_tied(tmp_path, EMBEDDING, tie_word_embeddings=False)
    assert is_tied(tmp_path, EMBEDDING, OUTPUT, tie_word_embeddings=True, text_config=SIZES)


def test_experts_are_known_by_the_names_of_ernie_and_aria_too(tmp_path):
    def shape_of(**sizes):
        (tmp_path / "config.json").write_text(json.dumps(SIZES | sizes))
        return transformer_of(compose([f"model.path={tmp_path}", "backend=sim", "run.dir=x"]).model).shape

    deepseek = shape_of(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=3, num_hidden_layers=2)
    assert shape_of(moe_num_experts=4, moe_topk=2, moe_num_shared_experts=3, num_hidden_layers=2) == deepseek
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 3, "moe_intermediate_size": 16}
    ernie = shape_of(**experts, moe_layer_start_index=3, moe_layer_interval=2, num_hidden_layers=8)
    assert (ernie.num_active_experts, ernie.expert_size, ernie.shared_expert_size) == (2, 16, 48)
    assert ernie.num_dense_layers == 5  # layers 3, 5 and 7 have experts
