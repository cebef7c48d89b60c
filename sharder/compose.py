"""From a command line to started runs: compose, check every point, make run folders, hand each over.

Nothing is written and nothing slow is started before every point of a sweep has been composed and checked. Then Hydra
runs the points, by whichever launcher was chosen: this process, or a Slurm job, claims a folder for each and hands it
over.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra import initialize_config_module
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sharder import run_folder
from sharder.config import Config
from sharder.errors import EXIT_USER_ERROR, UserError, ended
from sharder.overrides import Vocabulary, check_hydra_key, first_line
from sharder.parallel.processes import SLURM, check_part, membership
from sharder.supervise.workers import Interrupted
from sharder.validation import validate

Handover = Callable[[Path, Config, int], int]  # (claimed folder, config, lock) -> exit code
SEARCH_PATH = "hydra.searchpath"
STANDING_ON_A_CHECKPOINT = ("evaluate", "convert")  # commands that take a run's checkpoint as it is
OF_THE_CHECKPOINT = ("train", "model", "data", "optimizer")  # what they take from it, unless typed

ConfigStore.instance().store(name="schema", node=Config)


@dataclass(frozen=True)
class Finished:
    """What became of one point."""

    code: int
    where: str


@dataclass(frozen=True)
class Job:
    """One point, as Hydra calls it; its fields travel to wherever the launcher runs it."""

    command: str
    handover: Handover

    def __call__(self, composed: DictConfig) -> Finished:
        hydra = HydraConfig.get()
        overrides = [str(override) for override in hydra.overrides.task]
        try:
            config = _read(self.command, composed, overrides)
            config.run.id = _run_id(config, overrides, sweep=hydra.mode == RunMode.MULTIRUN)
            claim = run_folder.claim if membership(os.environ)[0].index == 0 else run_folder.follow
            folder = claim(config, overrides)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return Finished(EXIT_USER_ERROR, " ".join(overrides))
        try:
            where = run_folder.folder_of(config)
            print(f"run folder: {where}", flush=True)
            code = self.handover(folder.path, config, folder.lock)
            if code == EXIT_USER_ERROR:
                folder.undo()
            return Finished(code, str(where))
        finally:
            folder.release()


def main(command: str, handover: Handover, argv: Sequence[str] | None = None) -> int:
    """Runs what `argv` asks for and returns the exit code."""
    return ended(lambda: _main(command, handover, sys.argv[1:] if argv is None else argv))


def composed(command: str, typed: Sequence[str]) -> list[Config]:
    """The checked config of every point of a command line; nothing is written or started."""
    return [config for _, config in points(command, typed)]


def points(command: str, typed: Sequence[str]) -> list[tuple[list[str], Config]]:
    """The overrides of every point too, as its run folder will have them."""
    arguments = _parse(command, typed)
    with _conf(command):
        split, configs, _ = _Composer(command, arguments.overrides).compose(arguments.overrides, arguments.multirun)
    told = [[override for override in point if not override.startswith("hydra.")] for point in split]
    return list(zip(told, configs, strict=True))


def _conf(command: str) -> initialize_config_module:
    return initialize_config_module("sharder.conf", version_base="1.3", job_name=command)


def _main(command: str, handover: Handover, argv: Sequence[str]) -> int:
    arguments = _parse(command, argv)
    with _conf(command):
        composer = _Composer(command, arguments.overrides)
        points, configs, sweep = composer.compose(arguments.overrides, arguments.multirun)
        if arguments.cfg:
            print("---\n".join(OmegaConf.to_yaml(OmegaConf.structured(config)) for config in configs), end="")
            return 0
        for config in configs:
            check_part(membership(os.environ)[0], command, config)
        _check_folders(configs, points, sweep)
        job = Job(command, handover)
        try:
            if sweep:
                returned = composer.hydra.multirun(command, job, [*arguments.overrides, "hydra.mode=MULTIRUN"])
                return _summarize(returned, len(points))
            return composer.hydra.run(command, job, [*arguments.overrides, "hydra.mode=RUN"]).return_value.code
        except Interrupted as stop:
            if sweep:
                name = signal.Signals(stop.signal_number).name
                print(f"sweep: stopped by {name}, the rest is not run", file=sys.stderr)
            return int(str(stop.code))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; allowed: key=value, group=option, -m, --cfg, --help")


def _parse(command: str, argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog=f"python -m sharder.{command}", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", action="store_true")
    return parser.parse_intermixed_args(list(argv))


class _Composer:
    """Hydra for one command: splits a sweep into its points and composes them; errors say what would be right."""

    def __init__(self, command: str, typed: Sequence[str]) -> None:
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        self.hydra: Hydra = hydra
        self._command = command
        self._vocabulary = Vocabulary(hydra.config_loader, command, typed)

    def compose(self, typed: Sequence[str], multirun: bool) -> tuple[list[list[str]], list[Config], bool]:
        """Every point's overrides, every point's checked config, and whether they are the points of a sweep."""
        parsed = self._parse(typed)
        of_hydra = [one for one in parsed if one.key_or_group.startswith("hydra.") and one.key_or_group != SEARCH_PATH]
        if of_hydra:
            known = self._compose([_text(one) for one in parsed if one not in of_hydra], RunMode.MULTIRUN)
            for override in of_hydra:
                check_hydra_key(override, known.hydra)
        swept = [override for override in parsed if override.is_sweep_override()]
        base = self._compose(typed, RunMode.MULTIRUN if swept else RunMode.RUN)
        if not multirun and base.hydra.mode != RunMode.MULTIRUN:
            for override in swept:
                raise UserError(
                    f"{override.key_or_group}: found a sweep ({override.input_line}), allowed without -m: one; "
                    "add -m, or write a list as [a,b]"
                )
            return [list(typed)], [_read(self._command, base, typed)], False
        points = self._points(base)
        return points, [_read(self._command, self._compose(point, RunMode.RUN), point) for point in points], True

    def _points(self, base: DictConfig) -> list[list[str]]:
        """A sweep, of the preset's parameters and of what was typed, as the overrides of its points."""
        params = [f"{key}={values}" for key, values in (base.hydra.sweeper.get("params") or {}).items()]
        task = self._parse([*params, *base.hydra.overrides.task])
        if "basic_sweeper" in base.hydra.sweeper._target_:
            try:
                split = BasicSweeper.split_arguments(task, None)[0]
            except HydraException as error:
                raise UserError(first_line(error)) from error
        else:  # a sweeper that chooses as it goes: only what is fixed can be checked now
            split = [[_text(one) for one in task if not one.is_sweep_override()]]
        for point in split:
            self._parse(point)
        return [[*base.hydra.overrides.hydra, *point] for point in split]

    def _parse(self, overrides: Sequence[str]) -> list[Override]:
        parsed = []
        for text in overrides:
            try:
                parsed += OverridesParser.create(config_loader=self.hydra.config_loader).parse_overrides([text])
            except HydraException as error:
                raise UserError(
                    f"{text!r}: found no key=value or group=option ({first_line(error)}); a value with brackets, "
                    "commas or = is written in quotes of its own, as in 'data.prompt=\"pick it up, then stop\"'"
                ) from error
            self._vocabulary.check(parsed[-1])
        return parsed

    def _compose(self, overrides: Sequence[str], mode: RunMode) -> DictConfig:
        try:
            composed = self.hydra.compose_config(
                config_name=self._command,
                overrides=list(overrides),
                run_mode=mode,
                with_log_configuration=False,
                validate_sweep_overrides=False,
            )
            if mode == RunMode.RUN:
                OmegaConf.resolve(OmegaConf.masked_copy(composed, _own_keys(composed)))
            return composed
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise self._vocabulary.explain(error) from error


def _read(command: str, composed: DictConfig, overrides: Sequence[str]) -> Config:
    """The typed, checked config of a composition; on top of the checkpoint's for a command that stands on one."""
    missing = sorted(str(key) for key in OmegaConf.missing_keys(composed) if not str(key).startswith("hydra."))
    if missing:
        raise UserError(f"{missing[0]}: found ???, which is no value; set {missing[0]}=..., or leave it out")
    plain = OmegaConf.masked_copy(composed, _own_keys(composed))
    resume = run_folder.parse_resume(plain.resume)
    if command in STANDING_ON_A_CHECKPOINT:
        if resume.folder is None:
            raise UserError(
                f"resume: found {plain.resume}, allowed: <run folder>[@step]; name a run, as in "
                "resume=outputs/train/<run id>"
            )
        plain = _on_top_of(run_folder.saved_config(resume), plain, overrides)
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), plain))
    assert isinstance(config, Config)
    if (each := config.scaling.batch_per_device) is not None and each > 0:
        if config.scaling.name != "weak":
            raise UserError(
                f"scaling.batch_per_device: found {each} with scaling={config.scaling.name}, allowed: with "
                "scaling=weak; choose it, or set scaling.batch_per_device=null"
            )
        if any(override.lstrip("+").startswith("train.batch_size=") for override in overrides):
            raise UserError(
                f"train.batch_size: found it typed with scaling={config.scaling.name}, which makes it {each} a device; "
                "allowed: one of them; set scaling.batch_per_device=..., or scaling=fixed scaling.batch_per_device=null"
            )
        config.train.batch_size = each * config.mesh.size
    validate(config)
    return config


def _own_keys(composed: DictConfig) -> list[str]:
    return [str(key) for key in composed if key != "hydra"]


def _text(override: Override) -> str:
    assert override.input_line is not None
    return override.input_line


def _on_top_of(saved: Config, composed: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """What the checkpoint's run was, except for what was typed now."""
    merged = composed.copy()
    for name in OF_THE_CHECKPOINT:
        merged[name] = getattr(saved, name)
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        if key.split(".")[0] in OF_THE_CHECKPOINT:
            OmegaConf.update(merged, key, OmegaConf.select(composed, key), merge=False)
    return merged


def _run_id(config: Config, overrides: Sequence[str], sweep: bool) -> str:
    if sweep:
        return run_folder.sweep_id(overrides, config.run.id)
    us = membership(os.environ)[0]
    if config.run.id is None and us.source == SLURM:
        # A script that is requeued comes by the same steps again.
        step = os.environ.get("SLURM_STEP_ID", "")
        return f"slurm-{os.environ['SLURM_JOB_ID']}" + (f"-{step}" if step.isdecimal() else "")
    if config.run.id is None and us.several:
        raise UserError(
            f"run.id: found null, allowed in one of several processes ({us.source}): a name, the same in all of them; "
            "set run.id=..."
        )
    return config.run.id or run_folder.new_id()


def _check_folders(configs: Sequence[Config], points: Sequence[Sequence[str]], sweep: bool) -> None:
    """Every point can have its folder, and no two have the same."""
    taken: dict[Path, Sequence[str]] = {}
    for config, point in zip(configs, points, strict=True):
        named = dataclasses.replace(config, run=dataclasses.replace(config.run))
        named.run.id = _run_id(config, [one for one in point if not one.startswith("hydra")], sweep)
        folder = run_folder.folder_of(named)
        run_folder.check_root(folder, config)
        run_folder.check_resume(run_folder.parse_resume(config.resume), folder)
        if folder in taken:
            raise UserError(
                f"run.id: the points {' '.join(taken[folder])!r} and {' '.join(point)!r} share the run folder "
                f"{folder}; leave out one of them"
            )
        taken[folder] = point


def _summarize(returned: Any, total: int) -> int:
    """One line a point, and the first exit code that is not 0. A sweeper of another kind returns what it likes."""
    if not isinstance(returned, list):
        return 0
    finished = [job.return_value for batch in returned for job in batch]
    failed = [point for point in finished if point.code]
    for point in finished:
        print(f"sweep: exit {point.code}  {point.where}")
    print(f"sweep: {len(finished) - len(failed)} of {total} points succeeded")
    return failed[0].code if failed else 0
