"""Slabs of packed weights: aligned, apart from each other, with storages of their own."""

from concurrent.futures import ThreadPoolExecutor

from tokenmill.kernels.native.arena import Arena

_KIB = 1024


def test_pieces_are_zero_aligned_and_do_not_touch():
    arena = Arena(slab_bytes=64 * _KIB)
    pieces = [arena.take(n) for n in (1, 63, 64, 65, 30 * _KIB, 30 * _KIB, 100 * _KIB, 5)]
    assert all(piece.data_ptr() % 64 == 0 and not piece.any() for piece in pieces)
    for value, piece in enumerate(pieces):
        piece.fill_(value)
    assert all((piece == value).all() for value, piece in enumerate(pieces))
    assert arena.take(0).numel() == 0


def test_a_piece_counts_as_what_was_asked_for():
    piece = Arena(slab_bytes=64 * _KIB).take(1000)
    assert piece.untyped_storage().nbytes() == 1000


def test_a_piece_outlives_its_arena():
    piece = Arena(slab_bytes=64 * _KIB).take(1000)
    piece.fill_(7)
    assert (piece == 7).all()


def test_threads_get_pieces_of_their_own():
    arena = Arena(slab_bytes=64 * _KIB)
    with ThreadPoolExecutor(4) as pool:
        starts = [piece.data_ptr() for piece in pool.map(lambda _: arena.take(64), range(200))]
    assert len(set(starts)) == 200
