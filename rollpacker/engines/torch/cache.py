"""Keys and values of a batch whose rows have different lengths, join at any time and leave at any time.

Every row is aligned to the right: its newest token lies in the newest column, whatever its length. So one decode step
writes one column for all rows, the model's own forward pass sees an ordinary left-padded batch, and sliding windows,
rotary or learned positions and linear attention work as their authors wrote them.

        begin          end
          v             v
    . . . a a a a a a a .        rows 0..num_rows-1 are in use, without a gap
    . . . . . . b b b b .        columns begin..end-1 hold at least one token of some row
    . . . . c c c c c c .        column end is written next

A pass that verifies draft tokens writes several columns, from each row's own end on, and a row keeps as many of them
as it accepted: rejected ones are written over by the next pass. The rows' ends then differ, and `align` moves the rows
that lag to the right before the next plain step. So neither kind of pass copies rows, only a change between them does.

Invariants: a row's tokens are its columns `start..end-1`; the window's `begin` is the smallest start and its `end` the
largest end; what lies outside is finite, so that a masked column cannot spoil a sum. The last rows fill the places of
rows that leave, which costs a copy of those rows only; attention never runs over columns that no row needs.

Shapes: B rows, Q columns of a pass, W columns of the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from rollpacker.core.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_SPARE_COLUMNS = 64
"""Tokens. Room beyond twice the longest row, so that short batches are not moved again and again."""


def prefill_cache(config: Any) -> Cache:
    """An empty cache for the prompts of rows that are about to join.

    Raises:
        ModelError: The model keeps a kind of state that `RowCache` cannot hold.
    """
    layers: list[Any] = []
    for layer in DynamicCache(config=config).layers:
        # a sliding layer keeps all its columns here: the mask hides the old ones, and rows stay aligned
        if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
            layers.append(DynamicLayer())
        elif type(layer) is LinearAttentionLayer:
            layers.append(layer)
        else:
            raise ModelError(
                f"The torch engine cannot serve a {config.model_type} model: it keeps a {type(layer).__name__}.",
                "Layers may be full, sliding-window, chunked or linear attention, each by itself.",
                "Use another model, or an engine that knows this one.",
            )
    return Cache(layers=layers)


class RowCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """The cache that a decode step reads and extends."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        super().__init__(layers=[])
        self.layers: list[_AttentionLayer | _LinearLayer] = []
        self._max_rows = max_rows
        self._device = device
        self._window = _Window()
        self._starts = np.zeros(max_rows, dtype=np.int64)
        self._ends = np.zeros(max_rows, dtype=np.int64)
        self._starts_on_device = torch.zeros(0, 1, dtype=torch.int64)
        self._is_held = torch.zeros(0, 0, dtype=torch.bool)
        self._has_padding = False

    @property
    def num_rows(self) -> int:
        return self._window.num_rows

    @property
    def num_tokens(self) -> int:
        """Tokens held, over all rows."""
        return int((self._ends - self._starts)[: self.num_rows].sum())

    @property
    def is_aligned(self) -> bool:
        """Whether all rows end in the same column."""
        return bool((self._ends[: self.num_rows] == self._window.end).all())

    def attention_mask(self) -> torch.Tensor | None:
        """For the next decode step: shape [rows, columns], true where a row has a token; None if there is no gap."""
        if not self._has_padding:
            return None
        window = self._window
        return self._is_held[: window.num_rows, window.begin : window.end + 1]

    def position_ids(self) -> torch.Tensor:
        """For the next decode step: shape [rows, 1]."""
        return self._window.end - self._starts_on_device

    def reserve_columns(self, num_columns: int = 1) -> None:
        """Make room for the next pass."""
        if self._window.end + num_columns > self._is_held.shape[1]:
            self._move(num_rows=self.num_rows, end=self._window.width, num_spare=num_columns)

    def advance(self) -> None:
        """Count the column that a decode step has just written."""
        self._ends[: self.num_rows] += 1
        self._window.end += 1

    def open_columns(self, num_columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Let the next pass write so many columns from each row's own end on; `keep_columns` must follow it.

        Returns:
            The mask, shape [B, 1, Q, W], true where a row's token sees another one; and positions, shape [B, Q].
        """
        window = self._window
        ends_B1 = self._ends[: window.num_rows, None]
        columns_BQ = torch.from_numpy(ends_B1 + np.arange(num_columns)).to(self._device)
        columns_W = torch.arange(window.begin, window.end + num_columns, device=self._device)
        is_own_BW = columns_W >= self._starts_on_device
        mask_BQW = is_own_BW[:, None] & (columns_W <= columns_BQ[:, :, None])
        window.columns_BQ = columns_BQ
        return mask_BQW[:, None], columns_BQ - self._starts_on_device

    def keep_columns(self, nums_B: npt.NDArray[np.int64]) -> None:
        """Keep the first so many columns of each row that the pass has just written, and forget the others."""
        window = self._window
        window.columns_BQ = None
        ends = self._ends[: window.num_rows]
        ends += nums_B
        window.end = int(ends.max(initial=0))
        longest = int((ends - self._starts[: window.num_rows]).max(initial=0))
        if window.width > 2 * longest + _SPARE_COLUMNS:  # a row that joined late has left long ones behind
            self.align()

    def align(self) -> None:
        """Move the rows that lag, so that all end in the same column."""
        window = self._window
        lags = window.end - self._ends[: window.num_rows]
        rows = np.flatnonzero(lags)
        if not rows.size:
            return
        lags_R = torch.from_numpy(lags[rows]).to(self._device)
        sources_RW = (torch.arange(window.width, device=self._device) - lags_R[:, None]).clamp_(min=0)
        index_R = torch.from_numpy(rows).to(self._device)
        for layer in self.layers:
            layer.shift(index_R, sources_RW)
        self._starts[rows] += lags[rows]
        self._ends[rows] = window.end
        columns = torch.arange(self._is_held.shape[1], device=self._device)
        self._is_held[index_R] = columns >= torch.from_numpy(self._starts[rows]).to(self._device)[:, None]
        self._rows_changed()

    def join(self, prefilled: Cache, sources: Sequence[int], lengths: Sequence[int]) -> None:
        """Append rows that hold their prompts.

        Args:
            prefilled: Filled by one forward pass over prompts that were padded on the left.
            sources: Per new row, its prompt's row in `prefilled`; a prompt may serve several rows.
            lengths: Per new row, the prompt's tokens.
        """
        if not self.layers:
            self.layers = [_empty_like(layer, self._window) for layer in prefilled.layers]
        window = self._window
        first, num_rows = window.num_rows, window.num_rows + len(sources)
        longest = max(lengths)
        if first == 0 and longest < self._is_held.shape[1]:
            window.begin = window.end = longest
        if num_rows > self._is_held.shape[0] or longest > window.end or window.end == self._is_held.shape[1]:
            self._move(num_rows=num_rows, end=max(window.width, longest))
        index = torch.tensor(sources, device=self._device)
        for layer, prompt_layer in zip(self.layers, prefilled.layers, strict=True):
            layer.append(prompt_layer, index, first, longest)
        window.num_rows = num_rows
        for row, length in enumerate(lengths, start=first):
            start = window.end - length
            self._starts[row], self._ends[row] = start, window.end
            self._is_held[row, :start] = False
            self._is_held[row, start:] = True
        self._rows_changed()

    def remove(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Take rows out. Returns which rows moved where, for the caller's own tables: `(to, from)`."""
        window = self._window
        num_left = window.num_rows - len(rows)
        holes = rows[rows < num_left]
        stays = np.ones(window.num_rows, dtype=bool)
        stays[rows] = False
        movers = num_left + np.flatnonzero(stays[num_left:])
        order = np.arange(num_left)
        order[holes] = movers
        index_holes = torch.from_numpy(holes).to(self._device)
        index_movers = torch.from_numpy(movers).to(self._device)
        for layer in self.layers:
            layer.keep(order, index_holes, index_movers)
        self._is_held[index_holes] = self._is_held[index_movers]
        self._starts[holes] = self._starts[movers]
        self._ends[holes] = self._ends[movers]
        window.num_rows = num_left
        self._rows_changed()
        return holes, movers

    def release(self) -> None:
        """Give all memory back. There must be no rows."""
        self.layers = []
        self._is_held = torch.zeros(0, 0, dtype=torch.bool)
        self._window.begin = self._window.end = 0

    def _rows_changed(self) -> None:
        window = self._window
        starts, ends = self._starts[: window.num_rows], self._ends[: window.num_rows]
        window.end = int(ends.max()) if window.num_rows else window.end
        window.begin = int(starts.min(initial=window.end))
        self._has_padding = bool((starts > window.begin).any())
        self._starts_on_device = torch.from_numpy(starts.copy()).to(self._device).unsqueeze(1)

    def _move(self, num_rows: int, end: int, num_spare: int = 1) -> None:
        """Copy the window into buffers with room for `num_rows` rows and for columns beyond `end`, the new end."""
        window = self._window
        row_capacity = self._is_held.shape[0]
        if num_rows > row_capacity:
            row_capacity = min(self._max_rows, max(num_rows, 2 * row_capacity))
        column_capacity = 2 * end + max(_SPARE_COLUMNS, num_spare)
        shift = end - window.end
        for layer in self.layers:
            layer.move(row_capacity, column_capacity, shift)
        self._starts += shift
        self._ends += shift
        is_held = torch.zeros(row_capacity, column_capacity, dtype=torch.bool, device=self._device)
        columns = torch.arange(column_capacity, device=self._device)
        starts = torch.from_numpy(self._starts[: window.num_rows]).to(self._device)
        is_held[: window.num_rows] = columns >= starts[:, None]
        self._is_held = is_held
        window.begin += shift
        window.end = end
        self._rows_changed()


class _Window:
    """The part of the buffers in use; shared by a cache and its layers."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.begin = 0
        self.end = 0
        self.columns_BQ: torch.Tensor | None = None
        """Where the pass under way writes; None is column `end` of every row."""

    @property
    def width(self) -> int:
        return self.end - self.begin


class _AttentionLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """Keys and values of one layer, shape [row capacity, heads, column capacity, head size]."""

    is_sliding = False

    def __init__(self, window: _Window, prompt_layer: Any) -> None:
        super().__init__()
        self.window = window
        self.keys = _no_columns(prompt_layer.keys)
        self.values = _no_columns(prompt_layer.values)
        self.is_initialized = True

    # -- what a model's forward pass calls --

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  # some architectures pass more, as transformers' own layers allow
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.window
        num_rows, begin, end, columns_BQ = window.num_rows, window.begin, window.end, window.columns_BQ
        if columns_BQ is None:
            self.keys[:num_rows, :, end] = key_states[:, :, 0]
            self.values[:num_rows, :, end] = value_states[:, :, 0]
            end += 1
        else:
            columns_B1Q1 = columns_BQ[:, None, :, None]
            self.keys[:num_rows].scatter_(2, columns_B1Q1.expand_as(key_states), key_states)
            self.values[:num_rows].scatter_(2, columns_B1Q1.expand_as(value_states), value_states)
            end += columns_BQ.shape[1]
        return self.keys[:num_rows, :, begin:end], self.values[:num_rows, :, begin:end]

    def get_seq_length(self) -> int:
        return self.window.width

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.window.width + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is left to do: the buffers exist before the first forward pass."""

    # -- what the cache calls --

    def append(self, prompt_layer: Any, index: torch.Tensor, first: int, num_columns: int) -> None:
        rows, end = slice(first, first + len(index)), self.window.end
        self.keys[rows, :, end - num_columns : end] = prompt_layer.keys[index]
        self.values[rows, :, end - num_columns : end] = prompt_layer.values[index]

    def keep(self, order: npt.NDArray[np.int64], holes: torch.Tensor, movers: torch.Tensor) -> None:  # noqa: ARG002
        window = self.window
        for buffer in (self.keys, self.values):
            used = buffer[:, :, window.begin : window.end]
            used[holes] = used[movers]

    def shift(self, rows: torch.Tensor, sources_RW: torch.Tensor) -> None:
        window = self.window
        for buffer in (self.keys, self.values):
            used = buffer[:, :, window.begin : window.end]
            moved = used[rows]
            used[rows] = moved.gather(2, sources_RW[:, None, :, None].expand_as(moved))

    def move(self, row_capacity: int, column_capacity: int, shift: int) -> None:
        self.keys = self._moved(self.keys, row_capacity, column_capacity, shift)
        self.values = self._moved(self.values, row_capacity, column_capacity, shift)

    def _moved(self, buffer: torch.Tensor, row_capacity: int, column_capacity: int, shift: int) -> torch.Tensor:
        window = self.window
        _, num_heads, _, head_size = buffer.shape
        larger = buffer.new_zeros(row_capacity, num_heads, column_capacity, head_size)
        used = buffer[: window.num_rows, :, window.begin : window.end]
        larger[: window.num_rows, :, window.begin + shift : window.end + shift] = used
        return larger


class _LinearLayer(LinearAttentionLayer):  # type: ignore[misc]  # transformers is untyped
    """The running states of one linear-attention layer: a fixed size per row, without columns."""

    def __init__(self, prompt_layer: Any) -> None:
        super().__init__(number_of_states=prompt_layer.number_of_states)
        self.__dict__.update({name: _copied(field) for name, field in prompt_layer.__dict__.items()})
        for states in (self.conv_states, self.recurrent_states):
            for state, tensor in states.items():
                states[state] = None if tensor is None else tensor[:0]

    def append(self, prompt_layer: Any, index: torch.Tensor, first: int, num_columns: int) -> None:  # noqa: ARG002
        for mine, theirs in (
            (self.conv_states, prompt_layer.conv_states),
            (self.recurrent_states, prompt_layer.recurrent_states),
        ):
            for state, tensor in mine.items():
                mine[state] = None if tensor is None else torch.cat([tensor, theirs[state][index]])

    def keep(self, order: npt.NDArray[np.int64], holes: torch.Tensor, movers: torch.Tensor) -> None:  # noqa: ARG002
        index = torch.from_numpy(order)
        for states in (self.conv_states, self.recurrent_states):
            for state, tensor in states.items():
                states[state] = None if tensor is None else tensor[index.to(tensor.device)]

    def shift(self, rows: torch.Tensor, sources_RW: torch.Tensor) -> None:
        """A state has no columns to move; nor has `move`."""

    def move(self, row_capacity: int, column_capacity: int, shift: int) -> None:
        """Nothing to do."""


def _empty_like(prompt_layer: Any, window: _Window) -> _AttentionLayer | _LinearLayer:
    if isinstance(prompt_layer, LinearAttentionLayer):
        return _LinearLayer(prompt_layer)
    return _AttentionLayer(window, prompt_layer)


def _no_columns(states: torch.Tensor) -> torch.Tensor:
    _, num_heads, _, head_size = states.shape
    return states.new_zeros(0, num_heads, 0, head_size)


def _copied(field: Any) -> Any:
    return dict(field) if isinstance(field, dict) else field
