"""Single frames of one file: how many are decoded for them, and how many files stay open."""

import threading

import numpy as np
import pytest
from toy_recording import number_in, write_video

from sharder.data import video
from sharder.data.video import Decoder, DecoderPool, Frame, VideoError
from sharder.data.video_index import index_video

FRAMES, GROUP = 60, 12  # a key frame every GROUP


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("videos") / "toy.mp4"
    write_video(path, range(FRAMES), options={"g": str(GROUP), "bf": "2", "x264-params": "scenecut=0"})
    return path


def frames_of(path):
    index = index_video(path)
    return [Frame(n, int(index.pts[n]), int(index.key[n]), int(index.seek[n])) for n in range(len(index))]


def test_index_is_in_the_order_shown(path):
    index = index_video(path)
    assert len(index) == FRAMES
    np.testing.assert_allclose(index.seconds, np.arange(FRAMES) / 30, atol=1e-6)
    assert index.key.tolist() == [n // GROUP * GROUP for n in range(FRAMES)]
    assert len(set(index.crc.tolist())) > FRAMES * 0.8  # now and then two frames are coded alike
    assert index.problem == ""


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_any_order_gives_the_right_frames(path, order):
    frames = frames_of(path)
    numbers = {"forward": np.arange(FRAMES), "backward": np.arange(FRAMES)[::-1]}.get(
        order, np.random.default_rng(0).permutation(np.repeat(np.arange(FRAMES), 2))
    )
    decoder = Decoder(path)
    assert [number_in(decoder.read(frames[n])) for n in numbers] == numbers.tolist()
    decoder.close()


def test_a_seek_is_made_only_where_it_saves_decoding(path, monkeypatch):
    seeks = []
    seek = Decoder._seek
    monkeypatch.setattr(Decoder, "_seek", lambda self, time: (seeks.append(time), seek(self, time)))
    frames = frames_of(path)
    decoder = Decoder(path)
    for number, seeks_by_then in [(0, 0), (5, 0), (11, 0), (12, 0), (13, 0), (40, 1), (47, 1), (30, 2), (30, 3)]:
        assert number_in(decoder.read(frames[number])) == number
        assert len(seeks) == seeks_by_then, number
    decoder.close()


def test_a_misleading_seek_is_made_good(path):
    frames = frames_of(path)
    decoder = Decoder(path)
    decoder.read(frames[50])
    wrong = Frame(20, frames[20].pts, frames[20].key, frames[48].seek)
    assert number_in(decoder.read(wrong)) == 20
    with pytest.raises(VideoError, match="frame 20 is not there when decoding as h264"):
        decoder.read(Frame(20, frames[20].pts + 1, frames[20].key, frames[20].seek))
    decoder.close()


def test_the_pool_keeps_the_files_used_last(path, tmp_path, monkeypatch):
    opened, closed = [], []
    close = Decoder.close
    monkeypatch.setattr(video.av, "open", lambda name, real=video.av.open: (opened.append(name), real(name))[1])
    monkeypatch.setattr(Decoder, "close", lambda self: (closed.append(self.path.name), close(self))[1])
    paths = [tmp_path / f"{n}.mp4" for n in range(4)]
    for copy in paths:
        copy.write_bytes(path.read_bytes())
    frame = frames_of(path)[7]
    opened.clear()
    pool = DecoderPool(2)
    for n in (0, 1, 0, 2, 0, 3, 2):
        pool.read(paths[n], frame)
        assert len(pool) <= 2
    assert [name.rsplit("/", 1)[-1] for name in opened] == ["0.mp4", "1.mp4", "2.mp4", "3.mp4", "2.mp4"]
    assert closed == ["1.mp4", "2.mp4", "0.mp4"]


def test_threads_share_a_pool(path):
    frames = frames_of(path)
    pool = DecoderPool(3)
    wrong = []

    def read(seed):
        for number in np.random.default_rng(seed).permutation(FRAMES):
            if number_in(pool.read(path, frames[number])) != number:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 1 <= len(pool) <= 3


def test_files_that_are_no_video(tmp_path):
    (tmp_path / "text.mp4").write_text("nothing of the kind")
    assert (len(index_video(tmp_path / "text.mp4")), index_video(tmp_path / "absent.mp4").problem) == (
        0,
        "the file is missing",
    )
    with pytest.raises(VideoError, match=r"text.mp4 cannot be opened"):
        Decoder(tmp_path / "text.mp4")
