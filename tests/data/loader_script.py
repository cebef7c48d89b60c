"""Run by tests as a training process of its own: starts a loader, says who its worker is, and does as it is told."""

import signal
import sys
import time

from fake_recording import ModuleSource, SlowSource

from sharder.data.pipeline import Loader

if __name__ == "__main__":
    what = sys.argv[1]
    if what == "module":
        loader = Loader(ModuleSource(), first_step=0, last_step=1, workers=1, prefetch=1)
        print(next(loader)["jax"], flush=True)
    else:
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)
        loader = Loader(SlowSource(600, first_slow_step=2), first_step=0, last_step=9, workers=1, prefetch=2)
        print(loader.pids[0], next(loader)["example"][0], flush=True)
        if what == "wait":
            time.sleep(600)
        # "exit": ends without having closed the loader, its worker in the middle of a batch
