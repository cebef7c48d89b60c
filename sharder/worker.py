"""What the commands start: `python -m sharder.worker <command> <folder>` reads the config there and runs it.

Nothing slow is imported at the top: data worker processes import this file again, and bad data is refused before jax.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from pathlib import Path

from sharder.config import Config
from sharder.errors import CRASHED, EXIT_USER_ERROR, Fault, Stopped, UserError
from sharder.measure.start_up import StartUp, told_by
from sharder.parallel.processes import membership
from sharder.run_folder import folder_of, load_config, sealed_steps
from sharder.supervise.heartbeat import Heartbeat
from sharder.supervise.presence import Presence

NVIDIA_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvmap")  # as on servers, in WSL, and on Jetsons
log = logging.getLogger("sharder.worker")  # run as __main__, whose name is no child of sharder


def train(folder: Path, config: Config, presence: Presence) -> None:
    from sharder.data.dataset import open_dataset

    start_up = StartUp(told_by(os.environ))
    start_up.part("imports")
    data = open_dataset(config)
    presence.phase("decode")
    _ = data.frames  # before jax: a video that is damaged is refused at once
    presence.phase("start")
    start_up.part("data")

    from sharder.parallel.distributed import join
    from sharder.parallel.hardware import check_hardware
    from sharder.training import loop

    start_up.part("imports")
    _use_compile_cache()
    hosts = join(config, os.environ, log.info)
    check_hardware(config.hardware)
    start_up.part("devices")
    if config.remat.name == "auto":
        from sharder.predict.remat import with_fastest_remat

        data.config.remat = with_fastest_remat(data.config, tuple(data.recording.cameras)).remat
        start_up.part("choosing remat")
    loop.train(data, folder, hosts, presence, start_up)


def evaluate(folder: Path, config: Config, presence: Presence) -> None:
    from sharder.parallel.hardware import check_hardware
    from sharder.run_folder import write_atomically
    from sharder.training import scoring

    _use_compile_cache()
    check_hardware(config.hardware)
    result = scoring.score(config, folder)
    write_atomically(folder / "evaluation.json", json.dumps(result, indent=2) + "\n")
    log.info(f"written: {folder / 'evaluation.json'}")


def convert(folder: Path, config: Config, presence: Presence) -> None:
    from sharder.training import export

    export.to_openpi_layout(config, folder)


def plan(folder: Path, config: Config, presence: Presence) -> None:
    from sharder.predict.inputs import read_inputs

    inputs = read_inputs(config)

    from sharder.predict.planning import write_plan

    write_plan(inputs, folder)


def _use_compile_cache() -> None:
    from sharder.data.cache import cache_dir
    from sharder.parallel.compile_cache import use_compile_cache

    use_compile_cache(cache_dir() / "xla")


COMMANDS = {"train": train, "evaluate": evaluate, "convert": convert, "plan": plan}


def main(command: str, place: Path) -> int:
    """`place` holds this process's config: the run folder, or a passing one where another process claimed that."""
    presence = Presence(leave=_leave_at_once)
    presence.listen()
    _set_up_logging()
    try:
        config = load_config(place)
        folder, us = folder_of(config), membership(os.environ)[0]
        with Heartbeat(folder, us.index, us.attempt) as heartbeat:
            presence.heartbeat, presence.saved = heartbeat, lambda: bool(sealed_steps(folder))
            COMMANDS[command](folder, config, presence)
        code = 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = EXIT_USER_ERROR
    except Fault as fault:
        print(f"error: {fault}", file=sys.stderr, flush=True)
        code = CRASHED
    except Stopped as stopped:
        log.info(str(stopped))
        code = stopped.code
    except Exception:
        traceback.print_exc()
        code = CRASHED
    return _left(code)


def _left(code: int) -> int:
    """Together with the other processes of the run, if it got as far as meeting them."""
    if "sharder.parallel.distributed" in sys.modules:
        from sharder.parallel import distributed

        try:
            distributed.leave(code)
        except (Fault, UserError, Stopped) as error:
            # All is saved, but the others did not come: what that means is for whoever watches over the run.
            print(f"error: {error}", file=sys.stderr, flush=True)
            distributed.leave(CRASHED)
            return CRASHED
    return code


def _leave_at_once(code: int) -> None:
    """From another thread than the main one, which may be deep in a compile."""
    print("stopped: nothing was under way that is not saved", file=sys.stderr, flush=True)
    _left(code)
    os._exit(code)


def _set_up_logging() -> None:
    """Our own lines as they are; of other libraries only what is wrong."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    ours = logging.getLogger("sharder")
    ours.setLevel(logging.INFO)
    ours.addHandler(handler)
    ours.propagate = False
    logging.getLogger("absl").setLevel(logging.ERROR)
    logging.getLogger("jax._src.xla_bridge").addFilter(_of_devices_that_may_be_here)


def _of_devices_that_may_be_here(record: logging.LogRecord) -> bool:
    """jax's plugins for GPUs come with the plan extra; where there is no driver, that one does not start is no news."""
    text = record.getMessage()
    if "plugin" in text and "cuda" in text and not any(map(os.path.exists, NVIDIA_DRIVERS)):
        return False
    if record.exc_info and record.exc_info[1]:
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {record.exc_info[1]}", (), None
    return True


if __name__ == "__main__":
    from sharder.supervise.workers import die_with_parent

    die_with_parent()
    ended = main(sys.argv[1], Path(sys.argv[2]))
    if ended == CRASHED:  # what is worth keeping is closed; threads of a save that failed would keep us for minutes
        logging.shutdown()
        sys.stdout.flush()
        os._exit(ended)
    sys.exit(ended)
