"""What a config says to learn from, opened and checked: what can be refused is refused here, before step 0."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sharder.config import Config, ModelConfig
from sharder.data.decoded_frames import DecodedFrames
from sharder.data.fixed import FixedRecording, fixed_recording
from sharder.data.frame_decoding import decoded_frames
from sharder.data.lerobot import Recording, open_recording
from sharder.data.norm_stats import normalization_of
from sharder.data.normalize import Normalization, report, resolve_mode
from sharder.data.order import batches_per_epoch
from sharder.data.pipeline import BatchSource
from sharder.data.planar_arm_recording import ensure_recorded
from sharder.data.tokenizer import make_tokenizer
from sharder.data.transforms import ExampleTransform

log = logging.getLogger(__name__)


UNBOUNDED = 2**31  # tokens: a budget that no prompt exceeds
TOKENS_STEP = 8  # a prompt budget taken from the data is a multiple of this


@dataclass(frozen=True)
class Dataset:
    config: Config  # with what the data decides filled in: model.action_dim and model.prompt_tokens
    recording: Recording | FixedRecording
    normalization: Normalization
    transform: ExampleTransform

    @cached_property
    def frames(self) -> DecodedFrames | None:
        """Looked for, and if need be decoded, the first time that batches are wanted: no plan needs them."""
        return decoded_frames(self.recording, self.config.model.image_size, self.config.data)

    def source(self, slice: tuple[int, int] | None = None) -> BatchSource:
        """Of the global batch, or of the part (first, past last) of it."""
        train = self.config.train
        return BatchSource(
            self.recording,
            self.transform,
            seed=train.seed,
            batch_size=train.batch_size,
            slice=slice,
            frame_cache_mib=self.config.data.frame_cache_mib,
            frames=self.frames,
        )


def root_of(config: Config) -> Path:
    """Where the recording lies; the embedded one is made here the first time."""
    data = config.data
    if data.has_simulator:
        arm = data.planar_arm
        return ensure_recorded(arm.episodes, arm.seed, arm.image_size)
    assert data.root is not None  # validation.py
    return Path(data.root)


def recording_of(config: Config) -> Recording | FixedRecording:
    data = config.data
    if data.kind == "fixed":
        return fixed_recording(config)
    return open_recording(
        root_of(config),
        cameras=data.cameras.chosen(),
        state=data.state,
        action=data.action,
        episodes=data.episodes,
        decoders=data.decoders,
    )


def open_dataset(config: Config, normalization: Normalization | None = None) -> Dataset:
    """Opens the recording, reads or computes its normalization (unless given), and checks every prompt."""
    data, recording = config.data, recording_of(config)
    mode = resolve_mode(data.normalization, config.model.variant)
    if normalization is None:
        normalization = normalization_of(recording, data.normalization_file, mode)
    _tell_cameras(recording, config)
    report(normalization, recording, mode, data.min_range)
    model, transform = _fit(config, recording, normalization)
    batches_per_epoch(len(recording), config.train.batch_size)
    return Dataset(dataclasses.replace(config, model=model), recording, normalization, transform)


def _fit(
    config: Config, recording: Recording | FixedRecording, normalization: Normalization
) -> tuple[ModelConfig, ExampleTransform]:
    """The model's sizes that were left to the data (0), filled in, and the transform to them."""
    tokenizer = make_tokenizer(config.data.tokenizer)
    dims = config.model.action_dim or max(recording.state_dim, recording.action_dim)
    model = dataclasses.replace(config.model, action_dim=dims)
    bounded = dataclasses.replace(model, prompt_tokens=model.prompt_tokens or UNBOUNDED)
    most = ExampleTransform(bounded, config.data, normalization, tokenizer).check_prompts(recording)
    model.prompt_tokens = model.prompt_tokens or -(-most // TOKENS_STEP) * TOKENS_STEP
    log.info(f"prompts: at most {most} of model.prompt_tokens={model.prompt_tokens} tokens; action_dim {dims}")
    return model, ExampleTransform(model, config.data, normalization, tokenizer)


def _tell_cameras(recording: Recording | FixedRecording, config: Config) -> None:
    used = ", ".join(f"{camera} <- {key}" for camera, key in recording.cameras.items())
    absent = [camera for camera in vars(config.data.cameras) if camera not in recording.cameras]
    run = "run all the same" if config.work.absent_cameras else "not run: the same result as masking them, and free"
    rest = f"; absent: {', '.join(absent)} ({run})" if absent else ""
    log.info(f"cameras: {used or 'none'}{rest}")
