"""One checksum for both ends of a weight transfer, however the tensors travel."""

import pytest
import torch

from rollpacker.protocols.tensors import PIECE_BYTES, RunningChecksum, checksum_of_tensors

LENGTH = 2 * PIECE_BYTES + 13


@pytest.fixture(scope="module")
def data():
    return torch.randint(0, 256, (LENGTH,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def of_pieces(data, *begins):
    running = RunningChecksum()
    for begin, end in zip(begins, [*begins[1:], LENGTH], strict=True):
        running.add_piece("a", "uint8", (LENGTH,), begin, data[begin:end])
    return running.digest()


def test_pieces_in_any_order_give_the_checksum_of_the_whole(data):
    whole = checksum_of_tensors({"a": data})
    assert of_pieces(data, 0, PIECE_BYTES) == of_pieces(data, 0, 2 * PIECE_BYTES) == whole
    backwards = RunningChecksum()
    backwards.add_piece("a", "uint8", (LENGTH,), PIECE_BYTES, data[PIECE_BYTES:])
    backwards.add_piece("a", "uint8", (LENGTH,), 0, data[:PIECE_BYTES])
    assert backwards.digest() == whole


@pytest.mark.parametrize("place", [0, 8, PIECE_BYTES - 1, PIECE_BYTES, LENGTH - 13, LENGTH - 1])
def test_one_bit_anywhere_changes_it(data, place):
    damaged = data.clone()
    damaged[place] ^= 128
    assert checksum_of_tensors({"a": damaged}) != checksum_of_tensors({"a": data})


@pytest.mark.parametrize(("one", "other"), [(0, 8), (0, PIECE_BYTES), (8, PIECE_BYTES), (16, PIECE_BYTES + 8)])
def test_words_that_changed_places_change_it(data, one, other):
    swapped = data.clone()
    swapped[one : one + 8], swapped[other : other + 8] = data[other : other + 8], data[one : one + 8]
    assert checksum_of_tensors({"a": swapped}) != checksum_of_tensors({"a": data})


def test_tensors_that_changed_names_types_or_shapes_change_it():
    tensors = {"a": torch.zeros(4), "b": torch.ones(4)}
    others = (
        {"a": tensors["b"], "b": tensors["a"]},
        {"a": tensors["a"]},
        {"a": torch.zeros(2, 2), "b": tensors["b"]},
        {"a": torch.zeros(4, dtype=torch.int32), "b": tensors["b"]},
        {**tensors, "c": torch.zeros(0)},
    )
    assert len({checksum_of_tensors(each) for each in (tensors, *others)}) == 6


def test_layout_and_order_do_not_matter():
    matrix = torch.arange(12, dtype=torch.bfloat16).view(3, 4)
    across = matrix.t().contiguous().t()
    unaligned = torch.arange(25, dtype=torch.uint8)[1:]
    assert checksum_of_tensors({"m": across, "u": unaligned}) == checksum_of_tensors(
        {"u": unaligned.clone(), "m": matrix}
    )
