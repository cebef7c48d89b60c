"""The frame cache: right frames, no more bytes than allowed, the least recently used dropped first."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sharder.data.frame_cache import FrameCache


def frame(value):
    return np.full((4, 5, 3), value, np.uint8)  # 60 bytes


def test_the_least_recently_used_is_dropped():
    cache, made = FrameCache(3 * 60 + 59), []
    for row in (0, 1, 2, 0, 3, 0, 1):  # 3 pushes out 1, since 0 was used again
        found = cache.get(row, "top", lambda row=row: made.append(row) or frame(row))
        assert (found == row).all()
        assert cache.bytes <= cache.max_bytes
    assert made == [0, 1, 2, 3, 1] and cache.bytes == 180


def test_cameras_are_kept_apart_and_frames_cannot_be_changed():
    cache = FrameCache(10**6)
    assert cache.get(0, "top", lambda: frame(1))[0, 0, 0] == 1
    assert cache.get(0, "wrist", lambda: frame(2))[0, 0, 0] == 2
    with pytest.raises(ValueError, match="read-only"):
        cache.get(0, "top", lambda: frame(1))[:] = 0


@pytest.mark.parametrize("max_bytes", [0, 59])
def test_a_frame_larger_than_the_cache_is_not_kept(max_bytes):
    cache = FrameCache(max_bytes)
    assert (cache.get(0, "top", lambda: frame(7)) == 7).all() and cache.bytes == 0


def test_a_view_does_not_keep_its_picture_alive():
    picture = np.zeros((100, 100, 3), np.uint8)
    kept = FrameCache(10**6).get(0, "top", lambda: picture[:4, :5])
    assert kept.base is None and kept.nbytes == 60


def test_threads_get_right_frames_within_the_bound():
    cache = FrameCache(10 * 60)
    rows = np.random.default_rng(0).integers(0, 30, 3000)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: cache.get(int(row), "top", lambda: frame(row))[0, 0, 0], rows))
    np.testing.assert_array_equal(found, rows)
    assert cache.bytes == 600


def test_a_pickled_cache_is_empty():
    cache = FrameCache(1000)
    cache.get(0, "top", lambda: frame(1))
    again = pickle.loads(pickle.dumps(cache))
    assert (again.max_bytes, again.bytes) == (1000, 0) and (again.get(0, "top", lambda: frame(2)) == 2).all()
