"""Run by tests as a training process of its own: starts a loader, says who its worker is, and does as it is told."""

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
        loader = Loader(SlowSource(600, first_slow_step=2), first_step=0, last_step=9, workers=1, prefetch=3)
        next(loader), next(loader)
        time.sleep(0.5)  # the worker is now in the middle of its slow batch
        print(loader.pids[0], flush=True)
        if what == "wait":
            time.sleep(600)
        # "exit": ends without having closed the loader
