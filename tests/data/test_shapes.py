"""Sizes that a model directory gives by its weights, where config.json leaves them to transformers' defaults."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError, ModelError
from rollpacker.data.shapes import check_shape, num_experts_of, transformer_of

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


@pytest.fixture
def shape_of(tmp_path):
    def shape_of(**sizes):
        (tmp_path / "config.json").write_text(json.dumps(SIZES | sizes))
        return transformer_of(compose([f"model.path={tmp_path}", "backend=sim", "run.dir=x"]).model).shape

    return shape_of


def test_experts_are_known_by_the_names_of_ernie_and_aria_too(shape_of):
    deepseek = shape_of(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=3, num_hidden_layers=2)
    assert shape_of(moe_num_experts=4, moe_topk=2, moe_num_shared_experts=3, num_hidden_layers=2) == deepseek
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 3, "moe_intermediate_size": 16}
    ernie = shape_of(**experts, moe_layer_start_index=3, moe_layer_interval=2, num_hidden_layers=8)
    assert (ernie.num_active_experts, ernie.expert_size, ernie.shared_expert_size) == (2, 16, 48)
    assert ernie.num_dense_layers == 5  # layers 3, 5 and 7 have experts


def test_names_of_ernie_count_only_beside_its_number_of_experts(shape_of):
    with pytest.raises(ModelError, match="num_experts_per_tok"):
        shape_of(num_experts=16, moe_topk=1, num_shared_expert=1)  # Hunyuan-Large
    deepseek = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 3}
    assert shape_of(**deepseek, moe_topk=4, moe_num_shared_experts=None) == shape_of(**deepseek)


def test_a_name_of_ernie_without_a_number_overwrites_none_and_one_of_the_others_has_priority(shape_of):
    experts = {"moe_num_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 3}
    assert shape_of(**experts, moe_k=None, moe_num_shared_experts=2) == shape_of(**experts)


def test_experts_that_are_listed_are_experts_whose_sizes_are_refused(shape_of):
    assert num_experts_of({"moe_num_experts": [64, 32]}) == 64  # for text and images, of ERNIE-VL
    assert num_experts_of({"moe_num_experts": []}) == num_experts_of({"num_experts": ["64"]}) == 0
    with pytest.raises(ModelError, match="num_experts"):
        shape_of(moe_num_experts=[64, 32], moe_k=6)


def model_of(folder, **shape):
    words = [f"model.shape.{name}={size}" for name, size in shape.items()]
    return compose([f"model.path={folder}", *words, "backend=sim", "run.dir=x"]).model


def test_a_shape_that_is_not_that_of_the_directory_is_refused(shape_of, tmp_path):
    shape = shape_of().model_dump()
    check_shape(model_of(tmp_path, **shape))
    check_shape(model_of(tmp_path, **shape | {"has_tied_embeddings": True}))
    check_shape(model_of(tmp_path / "nowhere", **shape))
    with pytest.raises(
        ConfigError, match=r"has another shape than model\.shape: vocab_size 16 instead of 1,024\."
    ) as at:
        check_shape(model_of(tmp_path, **shape | {"vocab_size": 1024}))
    assert "Choose model=huggingface" in at.value.remedy


def test_a_model_directory_that_is_not_there_is_no_damaged_download(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError, match="mode does not exist") as at:
        transformer_of(compose([f"model.path={tmp_path}/mode", "backend=sim", "run.dir=x"]).model)
    assert at.value.remedy == f"Did you mean {tmp_path}/model?"
