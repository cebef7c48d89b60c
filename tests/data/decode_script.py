"""Run by a test as a process of its own: decodes a recording, hangs at a row of it, and is killed there."""

import time

from fake_recording import FakeRecording

from sharder.config import DataConfig
from sharder.data import frame_decoding


class Hanging(FakeRecording):
    def image(self, row, camera):
        if row == 60:
            time.sleep(600)
        return super().image(row, camera)


if __name__ == "__main__":
    frame_decoding.PIECE_ROWS = 25
    frame_decoding.decoded_frames(Hanging(103), 16, DataConfig(frames="decoded", workers=0))
