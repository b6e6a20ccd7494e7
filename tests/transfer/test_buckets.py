"""Where tensors lie in buckets."""

from hypothesis import given
from hypothesis import strategies as st

from rollpacker.protocols.tensors import PIECE_BYTES
from rollpacker.transfer.buckets import ALIGNMENT, BucketPlan, Piece, TensorSpec

BUCKET_BYTES = 2 * PIECE_BYTES


def spec(name, num_elements, dtype="bfloat16"):
    return TensorSpec(name=name, dtype=dtype, shape=(num_elements,))


def plan_buckets(specs: list[TensorSpec]) -> list[list[Piece]]:
    """The pieces of each bucket."""
    plan, buckets = BucketPlan(BUCKET_BYTES), []
    for bucket, piece in (placed for spec in specs for placed in plan.place(spec)):
        buckets += [[]] if bucket == len(buckets) else []
        buckets[bucket].append(piece)
    return buckets


def test_small_tensors_share_a_bucket_and_a_large_one_takes_several_of_its_own():
    small, large = spec("small", 100), spec("large", BUCKET_BYTES)  # 200 bytes, and two buckets
    buckets = plan_buckets([small, spec("odd", 3, "uint8"), large, small])
    placed = [[(piece.tensor.name, piece.begin, piece.offset) for piece in bucket] for bucket in buckets]
    assert placed == [
        [("small", 0, 0), ("odd", 0, 208)],
        [("large", 0, 0)],
        [("large", BUCKET_BYTES, 0)],
        [("small", 0, 0)],
    ]


tensors = st.lists(
    st.tuples(
        st.integers(0, 40) | st.integers(0, 3 * BUCKET_BYTES),
        st.sampled_from(["bfloat16", "float32", "int64", "uint8"]),
    ),
    max_size=12,
)


@given(tensors)
def test_every_byte_of_every_tensor_has_one_place_in_order_and_none_overlap(drawn):
    specs = [spec(f"t{index}", count, dtype) for index, (count, dtype) in enumerate(drawn)]
    buckets = plan_buckets(specs)
    pieces = [piece for bucket in buckets for piece in bucket]
    assert [piece.tensor for piece in pieces if piece.begin + piece.num_bytes == piece.tensor.num_bytes] == specs
    for each in specs:
        own = [piece for piece in pieces if piece.tensor == each]
        ends = [piece.begin + piece.num_bytes for piece in own]
        assert [piece.begin for piece in own] == [0, *ends[:-1]]
        assert ends[-1] == each.num_bytes
        assert len(own) == 1 or each.num_bytes > BUCKET_BYTES
    for bucket in buckets:
        ends = [piece.offset + piece.num_bytes for piece in bucket]
        assert all(end <= piece.offset for end, piece in zip(ends, bucket[1:], strict=False))
        assert ends[-1] <= BUCKET_BYTES
    assert all(piece.offset % ALIGNMENT == 0 and piece.begin % PIECE_BYTES == 0 for piece in pieces)
