"""Small modelled engines whose KV cache holds as many blocks as a test wants."""

from rollpacker.config.sections.model import ShapeSection
from rollpacker.config.sections.modelled import HardwareSection
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.data.shapes import Transformer
from rollpacker.sim.costs import KV_BLOCK_TOKENS, EngineCosts
from rollpacker.sim.decoder import Decoder, Generation

SMALL = Transformer(
    shape=ShapeSection(
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=1000,
    ),
    bytes_per_number=2,
)


def hardware(**changes) -> HardwareSection:
    """An H800, or something else."""
    peaks = {
        "name": "h800",
        "memory_gb": 80,
        "memory_gb_per_s": 3350,
        "tflops": 989,
        "nvlink_gb_per_s": 400,
        "network_gb_per_s": 50,
    }
    return HardwareSection(**(peaks | changes))


def engine_costs(num_blocks: int, **changes) -> EngineCosts:
    num_bytes = SMALL.num_weight_bytes + (num_blocks + 0.5) * KV_BLOCK_TOKENS * SMALL.kv_bytes_per_token
    costs = EngineCosts(
        model=SMALL, hardware=hardware(memory_gb=num_bytes / 1e9, memory_share=1, **changes), tensor_parallel=1
    )
    assert costs.num_kv_blocks == num_blocks
    return costs


def request(number: int) -> RequestId:
    return RequestId(0, PromptId(0, f"p{number}"), 0)


def generation(number: int, length: int, num_prompt_tokens: int = 5, asked_at_s: float = 0.0) -> Generation:
    return Generation(
        request=request(number), num_prompt_tokens=num_prompt_tokens, length_tokens=length, asked_at_s=asked_at_s
    )


def run_out(decoder: Decoder) -> list[tuple[float, str, int, bool]]:
    """Advance until nothing is left; gives (time, prompt, tokens, aborted) of each end, and checks on the way."""
    ends = []
    while decoder.next_at_s is not None:
        now = decoder.next_at_s
        for ended in decoder.advance():
            sequence = ended.sequence
            ends.append((now, sequence.request.prompt.key, sequence.num_generated, ended.is_aborted))
        decoder.check()
    return ends
