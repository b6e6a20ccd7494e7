"""Which decoder layers stay on the accelerator, and how many: a function of sizes, rates and free memory.

Of N layers, S are streamed: copied from host memory to a device slot before they compute, by a copy engine that works
beside the processors. Every layer computes for c seconds, every copy takes t seconds.

**Which ones.** The S copies of a pass take S t, and no order of layers makes that less, so S t - N c is waited for at
least. With two slots a copy can begin once the streamed layer before the last one has computed, so each copy has the
compute between two streamed layers to hide behind. Streamed layers in one block leave it one layer's: (t - c) is waited
for at each. Spread evenly, every N/S-th layer, it has the compute of N/S layers, the largest smallest gap there is, and
S t <= N c suffices wherever the gaps come out whole. The streamed layer is the last of its stretch, so that a pass that
begins with empty slots has resident layers to begin with; and the order is a ring, so that the copies for the next pass
run behind the end of this one. `waiting_s` follows the copies one by one, rounding of gaps included.

**How many.** The fewest resident layers with which nothing is waited for; all that memory holds if it holds fewer:

    layer_flops      = 2 P T + 2 A sum(length^2)           P: parameters of a layer, T: tokens, A: heads x head size
    c                = layer_flops / flops_per_s           (FLOPs per token as in Kaplan et al., 2020)
    t                = layer_bytes / copy_bytes_per_s
    resident R      >= N - N c / t                         copy time at most compute time
    (R + slots) layer_bytes + activation_bytes(T) <= free_bytes;  N layer_bytes + ... where all are resident

So a longer batch needs fewer resident layers (c grows) and leaves memory for fewer (activations grow), as the paper
asks for (RollPacker, section 4.3); the paper gives no formula. Rates are measured, pass by pass (`MeasuredRates`), and
`Residency` keeps the number from swinging with every batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollpacker.core.errors import EngineFailed

NUM_SLOTS = 2
"""Layers in flight: one computes, the next one arrives. With two, copies and compute overlap whole (see above)."""

PATIENCE_PASSES = 8
"""So many passes in a row must have needed fewer resident layers before any is given up. A lost layer costs its copy
again, about what it would cost to have streamed it in one of these passes."""

_SMOOTHING = 0.5
"""Weight of the newest measurement: the actor's load on a shared accelerator changes within seconds."""

_SPARE_SHARE = 0.2
"""Of the activations, left free beside them: the allocator's rounding and the kernels' workspaces. A guess."""

_ROUNDING = 1e-9
"""Relative difference that a sum of times may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """A model as the planner sees it: equal decoder layers, and what a pass computes in them."""

    num_layers: int
    layer_bytes: int
    """Of the largest layer, as it lies in a slot."""
    layer_parameters: int
    """Numbers that every token is multiplied with in one layer."""
    hidden_size: int
    intermediate_size: int
    attention_width: int
    """Query heads times head size."""
    vocab_size: int
    bytes_per_number: int
    """Of weights and activations."""
    num_slots: int = NUM_SLOTS

    def layer_flops(self, num_rows: int, longest: int) -> float:
        """Work of one layer on so many rows, padded to the longest."""
        matmul = 2.0 * self.layer_parameters * num_rows * longest
        return matmul + 2.0 * self.attention_width * num_rows * longest * longest

    def activation_bytes(self, num_rows: int, longest: int) -> int:
        """Most that lives at one time, as transformers' modules compute.

        Per token the embedding, the layer's input, the residual stream and its normed copy, and beside them the larger
        of: gate, up and their product; queries, keys and values before and after the rotation, with its temporaries
        (keys and values counted as wide as queries); the norm's two fp32 copies. Per row, the last position's logits,
        in fp32 too.
        """
        mlp = 3 * self.intermediate_size * self.bytes_per_number
        attention = 7 * self.attention_width * self.bytes_per_number
        norm = 2 * 4 * self.hidden_size
        per_token = 4 * self.hidden_size * self.bytes_per_number + max(mlp, attention, norm)
        per_row = self.vocab_size * (self.bytes_per_number + 4)
        return num_rows * (longest * per_token + per_row)

    def weight_bytes(self, num_resident: int) -> int:
        """Device memory of the decoder layers: those that stay, and the slots of the others."""
        num_held = self.num_layers if num_resident == self.num_layers else num_resident + self.num_slots
        return num_held * self.layer_bytes

    def num_that_fit(self, num_bytes: float) -> int | None:
        """The most layers that can stay in so much memory, beside the slots; None if the slots alone do not fit."""
        if self.weight_bytes(self.num_layers) <= num_bytes:
            return self.num_layers
        num_resident = min(math.floor(num_bytes / self.layer_bytes) - self.num_slots, self.largest_partial)
        return num_resident if num_resident >= 0 else None

    @property
    def largest_partial(self) -> int:
        """The most layers that can stay while others stream; -1 where none do.

        As many layers as there are slots, or fewer, need not be streamed: each would lie in a slot for good.
        """
        return max(self.num_layers - self.num_slots - 1, -1)

    def allowed(self, num_resident: int) -> int:
        """The next number of resident layers that makes sense, upwards."""
        return num_resident if num_resident <= self.largest_partial else self.num_layers


def streamed_layers(num_layers: int, num_resident: int) -> tuple[int, ...]:
    """Which layers stream, ascending: each the last of one of `num_layers - num_resident` equal stretches."""
    num_streamed = num_layers - num_resident
    return tuple((index + 1) * num_layers // num_streamed - 1 for index in range(num_streamed))


def waiting_s(streamed: tuple[int, ...], num_layers: int, *, copy_s: float, compute_s: float, num_slots: int) -> float:
    """How long compute waits for copies in a pass that follows others without a break.

    Args:
        streamed: Which layers stream, ascending.
        num_layers: Of all.
        copy_s: Of one layer.
        compute_s: Of one layer.
        num_slots: A copy begins when the one before it has ended and a slot's last layer has computed.
    """
    if not streamed:
        return 0.0
    is_streamed = frozenset(streamed)
    now, copied_at = 0.0, 0.0
    computed_at: list[float] = []
    waited = 0.0
    for _ in range(_PASSES_TO_SETTLE):
        waited = 0.0
        for layer in range(num_layers):
            if layer in is_streamed:
                index = len(computed_at)
                slot_free_at = computed_at[index - num_slots] if index >= num_slots else 0.0
                copied_at = max(copied_at, slot_free_at) + copy_s
                waited += max(copied_at - now, 0.0)
                now = max(copied_at, now)
                computed_at.append(now + compute_s)
            now += compute_s
    return waited


_PASSES_TO_SETTLE = 4
"""After which a pass begins with its slots as the pass before left them."""


def num_resident_layers(
    sizes: LayerSizes,
    *,
    num_rows: int,
    longest: int,
    free_bytes: float,
    copy_bytes_per_s: float,
    flops_per_s: float,
) -> int:
    """How many layers should stay for a batch: the fewest with which no copy is waited for, or all that fit.

    Args:
        sizes: The model.
        num_rows: Of the batch.
        longest: Tokens of its longest row, to which the others are padded.
        free_bytes: Device memory for decoder layers, slots and activations.
        copy_bytes_per_s: From host memory to the device.
        flops_per_s: That a layer's compute reaches on a batch of this size.

    Raises:
        EngineFailed: The slots and the activations do not fit.
    """
    fit = num_that_fit(sizes, num_rows=num_rows, longest=longest, free_bytes=free_bytes)
    copy_s = sizes.layer_bytes / copy_bytes_per_s
    compute_s = sizes.layer_flops(num_rows, longest) / flops_per_s
    num_layers = sizes.num_layers
    # the bound of the bandwidth; rounding of the gaps may ask for a layer or two more
    num_resident = max(0, num_layers - math.floor(num_layers * compute_s / copy_s * (1 + _ROUNDING)))
    while (num_resident := sizes.allowed(num_resident)) < fit:
        waited = waiting_s(
            streamed_layers(num_layers, num_resident),
            num_layers,
            copy_s=copy_s,
            compute_s=compute_s,
            num_slots=sizes.num_slots,
        )
        if waited <= _ROUNDING * num_layers * compute_s:
            return num_resident
        num_resident += 1
    return fit


def pass_bytes(sizes: LayerSizes, num_rows: int, longest: int) -> float:
    """Device memory that a pass takes beside the layers: its activations, and what is left free beside them."""
    return sizes.activation_bytes(num_rows, longest) * (1 + _SPARE_SHARE)


def num_that_fit(sizes: LayerSizes, *, num_rows: int, longest: int, free_bytes: float) -> int:
    """The most layers that can stay beside a batch's activations.

    Raises:
        EngineFailed: Not even the slots fit.
    """
    activations = pass_bytes(sizes, num_rows, longest)
    fit = sizes.num_that_fit(free_bytes - activations)
    if fit is None:
        raise EngineFailed(
            f"A pass over {num_rows} prompts of up to {longest} tokens takes {activations / 1e9:.2f} GB, its "
            f"{sizes.num_slots} slots for layers {sizes.num_slots * sizes.layer_bytes / 1e9:.2f} GB, and "
            f"{free_bytes / 1e9:.2f} GB of the device are free.",
            "Both must fit: with no layer resident, nothing else is needed.",
            "Raise reward.judge.memory_share, lower reward.judge.max_batch_tokens, or give the judge a GPU of its own.",
        )
    return fit


class Residency:
    """The number of resident layers over a stream of batches, slow to give layers up.

    It rises at once, for a layer that is missing is waited for in this very pass, and becoming resident costs no copy
    beyond the one that streaming it would. It falls at once where memory asks for it. Where layers are merely not
    needed, it falls after `PATIENCE_PASSES` such passes in a row, and only to the most that one of them needed.
    """

    def __init__(self, num_resident: int = 0) -> None:
        self.num_resident = num_resident
        self._needed: list[int] = []

    def adapt(self, *, needed: int, fit: int) -> int:
        """Decide for the next pass.

        Args:
            needed: What `num_resident_layers` says of it.
            fit: The most that can stay.
        """
        if needed >= self.num_resident:
            self._needed.clear()
            self.num_resident = needed
        else:
            self._needed.append(needed)
            if len(self._needed) == PATIENCE_PASSES:
                self.num_resident = max(self._needed)
                self._needed.clear()
        self.num_resident = min(self.num_resident, fit)
        return self.num_resident


class MeasuredRates:
    """Copy and compute rates of the passes so far; compute by powers of two of tokens, for small batches reach less."""

    def __init__(self) -> None:
        self.copy_bytes_per_s: float | None = None
        self._flops_per_s: dict[int, float] = {}

    def measured_copies(self, num_bytes: int, seconds: float) -> None:
        """Take the copies of a pass into account."""
        if num_bytes and seconds > 0:
            self.copy_bytes_per_s = _smoothed(self.copy_bytes_per_s, num_bytes / seconds)

    def measured_compute(self, num_tokens: int, flops: float, seconds: float) -> None:
        """Take the compute of a pass into account."""
        if seconds > 0:
            size = num_tokens.bit_length()
            self._flops_per_s[size] = _smoothed(self._flops_per_s.get(size), flops / seconds)

    def flops_per_s(self, num_tokens: int) -> float | None:
        """The rate of the nearest batch size that was measured, the larger of two; None before the first."""
        if not self._flops_per_s:
            return None
        size = num_tokens.bit_length()
        nearest = min(self._flops_per_s, key=lambda known: (abs(known - size), -known))
        return self._flops_per_s[nearest]


def _smoothed(before: float | None, newest: float) -> float:
    return newest if before is None else (1 - _SMOOTHING) * before + _SMOOTHING * newest
