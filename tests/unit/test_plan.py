"""The plan of a reduction: which elements of which tensors one MPI call sums."""

from matexrun.collectives.plan import Bucket, Piece, plan

MIB = 1 << 20


def pieces(buckets):
    return [[(piece.tensor, piece.start, piece.stop) for piece in bucket.pieces] for bucket in buckets]


def test_small_tensors_share_a_bucket_last_one_first():
    assert plan([("float32", 3, 4), ("float32", 5, 4)], MIB, MIB) == (
        Bucket("float32", (Piece(1, 0, 5), Piece(0, 0, 3)), 8),
    )


def test_a_full_bucket_is_closed():
    tensors = [("float32", 10, 4)] * 40  # 40 bytes each; 16 of them fill 640 bytes
    assert pieces(plan(tensors, 640, MIB)) == [
        [(number, 0, 10) for number in range(39, 23, -1)],
        [(number, 0, 10) for number in range(23, 7, -1)],
        [(number, 0, 10) for number in range(7, -1, -1)],
    ]


def test_large_tensors_stay_alone_in_equal_pieces():
    assert pieces(plan([("float32", 1001, 4)], 640, 1024)) == [
        [(0, 0, 250)],
        [(0, 250, 500)],
        [(0, 500, 750)],
        [(0, 750, 1001)],
    ]


def test_a_large_tensor_does_not_close_the_bucket_around_it():
    tensors = [("float32", 1, 4), ("float32", 100, 4), ("float32", 2, 4)]
    assert pieces(plan(tensors, 640, 1024)) == [[(1, 0, 100)], [(2, 0, 2), (0, 0, 1)]]


def test_dtypes_do_not_mix():
    tensors = [("float32", 1, 4), ("float64", 1, 8), ("float32", 2, 4), ("bfloat16", 4, 4)]
    assert plan(tensors, MIB, MIB) == (
        Bucket("bfloat16", (Piece(3, 0, 4),), 4),
        Bucket("float32", (Piece(2, 0, 2), Piece(0, 0, 1)), 3),
        Bucket("float64", (Piece(1, 0, 1),), 1),
    )


def test_nothing_to_do_for_empty_tensors():
    assert plan([("float32", 0, 4)], MIB, MIB) == ()
    assert plan([], MIB, MIB) == ()


def test_a_chunk_smaller_than_an_element_still_holds_one():
    assert pieces(plan([("float64", 3, 8)], 1, 1)) == [[(0, 0, 1)], [(0, 1, 2)], [(0, 2, 3)]]


def test_every_element_once_and_no_call_above_its_limit():
    sizes = [1, 2047, 2048, 2049, 64, 1 << 20, 3, 0, 512 * 512 * 9, 1000]
    tensors = [(dtype, size, 4) for size in sizes for dtype in ("float32", "float16")]
    seen = {number: [] for number in range(len(tensors))}
    for bucket in plan(tensors, MIB, MIB // 2):
        assert bucket.size == sum(piece.stop - piece.start for piece in bucket.pieces)
        assert bucket.size * 4 <= (MIB if len(bucket.pieces) > 1 else MIB // 2)
        for piece in bucket.pieces:
            assert tensors[piece.tensor][0] == bucket.dtype
            seen[piece.tensor].append((piece.start, piece.stop))
    for number, (_, size, _) in enumerate(tensors):
        edges = sorted(seen[number])
        assert [start for start, _ in edges] == [0, *(stop for _, stop in edges[:-1])][: len(edges)]
        assert (edges[-1][1] if edges else 0) == size
