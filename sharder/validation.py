"""Every check of a config that types cannot make and that needs neither data nor devices.

A failed check is a UserError that names the key, what was found, what is allowed and the fix. `CHOICES` are the words a
key may have; the options of the config groups of the same name are the same words (a test compares them).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from sharder.config import CamerasConfig, Config, LimitsConfig
from sharder.errors import UserError

CHOICES = {
    "model.variant": ("pi0", "pi05"),
    "model.weight_dtype": ("float32", "bfloat16"),
    "model.compute_dtype": ("float32", "bfloat16"),
    "data.kind": ("planar_arm", "lerobot", "fixed"),
    "data.normalization": ("auto", "mean_std", "quantiles", "none"),
    "data.frames": ("auto", "decoded", "on_demand"),
    "hardware.kind": ("auto", "cpu", "h100", "h200", "a100", "tpu_v5e"),
    "plan.search": ("none", "batch", "fastest"),
    "tracking.mode": ("offline", "online", "off"),
    "scaling.name": ("fixed", "strong", "weak"),
    "report.rows": ("run", "step"),
    "report.draw": ("lines", "bars", "stacked"),
    "layout.name": ("gather", "auto", "published"),
    "layout.reduction": ("auto", "fixed_order", "transport"),
    "overlap.name": ("default", "off", "published"),
    "work.name": ("least", "unrolled", "published"),
    "attn.name": ("naive", "xla", "tiles", "flash"),
    "remat.name": ("none", "dots", "dots_no_batch", "full", "auto"),
    "train.on_nonfinite": ("stop", "skip"),
    "launch.name": ("inline", "local", "supervised"),
    "profile.name": ("off", "window"),
}
EXPERT_WIDTHS = ("width", "depth", "mlp_dim", "heads", "kv_heads", "head_dim")
AT_LEAST_ONE = (
    *("train.steps", "train.batch_size", "train.accumulation", "train.log_every"),
    *(f"model.vision.{name}" for name in ("width", "depth", "mlp_dim", "heads", "patch")),
    *(f"model.{expert}.{name}" for expert in ("language", "action") for name in EXPERT_WIDTHS),
    *("model.vocabulary", "model.image_size", "model.horizon"),
    *("model.flow_steps", "data.prefetch", "data.decoders", "data.planar_arm.episodes", "data.planar_arm.image_size"),
    *("optimizer.decay_steps", "mesh.batch", "mesh.fsdp", "hardware.hosts", "launch.processes"),
    *("launch.min_processes", "launch.retries", "launch.same_failure"),
    *("checkpoint.every_steps", "evaluation.episodes", "evaluation.max_steps", "evaluation.execute"),
    *("evaluation.frames", "profile.after_steps", "profile.steps"),
)
AT_LEAST_ZERO = (
    *("model.action_dim", "model.prompt_tokens", "train.seed", "data.workers", "data.frame_cache_mib"),
    *("data.decoded_gib", "data.planar_arm.seed", "evaluation.seed"),
    *("optimizer.warmup_steps", "layout.min_shard_bytes"),
    *("optimizer.final_learning_rate", "optimizer.weight_decay", "model.language.lora_rank", "model.action.lora_rank"),
)
ABOVE_ZERO = (
    *("optimizer.learning_rate", "optimizer.eps", "optimizer.clip_norm", "data.min_range"),
    *("model.language.lora_alpha", "model.action.lora_alpha"),
    *(f"launch.{name}_s" for name in ("start_timeout", "barrier_timeout", "late_after", "preflight_timeout")),
    *("launch.backoff_s", "launch.grace_s", *(f"launch.limits.{name}" for name in vars(LimitsConfig()))),
)
RATES = (
    *("peak_flops_per_s", "hbm_bytes", "hbm_bytes_per_s"),
    *("link_bytes_per_s", "link_latency_s", "network_bytes_per_s"),
)
ABOVE_ZERO_OR_NULL = ("scaling.batch_per_device", *(f"hardware.{name}" for name in RATES))
AT_MOST = {  # more is a slip of the hand, or does not fit where the number goes
    **dict.fromkeys(("train.steps", "train.seed", "evaluation.seed", "optimizer.decay_steps"), 2**31 - 1_000_000),
    **dict.fromkeys(("train.batch_size", "model.vocabulary"), 2**24),
    **dict.fromkeys(("model.horizon", "model.action_dim", "model.prompt_tokens", "model.flow_steps"), 2**14),
    **dict.fromkeys(("data.workers", "data.prefetch", "model.image_size"), 2**12),
    **dict.fromkeys(("optimizer.weight_decay", "optimizer.learning_rate", "data.min_range", "data.decoded_gib"), 1e6),
}
SHARES = ("data.augment.brightness", "data.augment.contrast", "data.augment.saturation")
BYTE_VOCABULARY = 258  # padding, begin, and one token a byte


def validate(config: Config) -> None:
    """Raises UserError at the first thing that could not work."""
    for key, words in CHOICES.items():
        _require(config, key, words.__contains__, f"one of {', '.join(words)}")
    for key in AT_LEAST_ONE:
        _require(config, key, lambda value: value >= 1, "1 or more")
    for key in AT_LEAST_ZERO:
        _require(config, key, lambda value: value >= 0, "0 or more")
    for key in ABOVE_ZERO:
        _require(config, key, lambda value: 0 < value < float("inf"), "a finite number above 0")
    for key in ABOVE_ZERO_OR_NULL:
        _require(config, key, lambda value: value is None or 0 < value < float("inf"), "a number above 0, or null")
    for key, largest in AT_MOST.items():
        _require(config, key, partial(operator.ge, largest), f"at most {largest:,}")
    for key in SHARES:
        _require(config, key, lambda value: 0 <= value <= 1, "0 to 1")
    _validate_run(config)
    _validate_model(config)
    _validate_data(config)
    _validate_training(config)
    _validate_devices(config)
    _validate_plan(config)


def _validate_run(config: Config) -> None:
    for key in ("run.name", "run.id"):
        allowed = "a folder name of at most 200 characters, without / and not starting with a dot"
        _require(config, key, lambda value: value is None or _is_folder_name(value), allowed)
    _require(config, "run.root", lambda value: bool(value.strip()), "a path", "leave it out for outputs")


def _validate_model(config: Config) -> None:
    model = config.model
    if model.image_size % model.vision.patch:
        raise UserError(
            f"model.image_size: found {model.image_size}, allowed: a multiple of "
            f"model.vision.patch={model.vision.patch}; change either"
        )
    if model.vision.width % model.vision.heads:
        raise UserError(
            f"model.vision.heads: found {model.vision.heads}, allowed: a divisor of "
            f"model.vision.width={model.vision.width}; change either"
        )
    for name in ("depth", "heads", "kv_heads", "head_dim"):
        language, action = getattr(model.language, name), getattr(model.action, name)
        if language != action:
            raise UserError(
                f"model.action.{name}: found {action}, allowed: {language} as in model.language.{name}, since the "
                "experts share one attention; set both to the same"
            )
    if model.language.heads % model.language.kv_heads:
        raise UserError(
            f"model.language.kv_heads: found {model.language.kv_heads}, allowed: a divisor of "
            f"model.language.heads={model.language.heads}; set it in both experts"
        )
    if model.language.head_dim % 2:
        raise UserError(
            f"model.language.head_dim: found {model.language.head_dim}, allowed: an even number, since rotary "
            "embeddings turn pairs; set it in both experts"
        )
    # The embeddings of time and of action positions are halves of sines and cosines.
    _require(config, "model.action.width", lambda value: value % 2 == 0, "an even number")
    if model.weights is not None and not Path(model.weights).exists():
        raise UserError(f"model.weights: found {model.weights!r}, which does not exist; allowed: a checkpoint, or null")


def _validate_data(config: Config) -> None:
    data = config.data
    if data.kind == "lerobot" and not data.root:
        raise UserError(
            "data.root: found null, allowed with data=lerobot: a LeRobot set's folder; add data.root=<folder>"
        )
    if data.normalization_file is not None and not Path(data.normalization_file).is_file():
        raise UserError(
            f"data.normalization_file: found {data.normalization_file!r}, which is not a file; allowed: the path of a "
            "norm_stats.json, or null to compute them"
        )
    if data.tokenizer != "bytes" and not Path(data.tokenizer).is_file():
        raise UserError(
            f"data.tokenizer: found {data.tokenizer!r}, which is not a file; allowed: bytes, or the path of a "
            "SentencePiece model"
        )
    if data.tokenizer == "bytes" and config.model.vocabulary < BYTE_VOCABULARY:
        raise UserError(
            f"model.vocabulary: found {config.model.vocabulary}, allowed with data.tokenizer=bytes: "
            f"{BYTE_VOCABULARY} or more; set model.vocabulary={BYTE_VOCABULARY}"
        )
    if data.episodes is not None and (not data.episodes or min(data.episodes) < 0):
        raise UserError(f"data.episodes: found {data.episodes}, allowed: episode indices from 0, or null for all")
    _require(config, "data.augment.crop", lambda value: 0 < value <= 1, "above 0, at most 1; 1 is no crop")
    _require(config, "data.augment.rotation_degrees", lambda value: 0 <= value <= 180, "0 to 180")
    cameras = tuple(vars(CamerasConfig()))
    for camera in data.augment.geometric_except:
        if camera not in cameras:
            raise UserError(f"data.augment.geometric_except: found {camera!r}, allowed: {', '.join(cameras)}")


def _validate_plan(config: Config) -> None:
    if config.remat.name == "auto" and config.plan.search == "batch":
        raise UserError(
            "remat: found auto with plan.search=batch, allowed: one of none, dots, dots_no_batch, full; choose one, or "
            "plan.search=fastest with plan.batch_sizes"
        )
    remats = [word for word in CHOICES["remat.name"] if word != "auto"]
    for key, words in (("remats", remats), ("layouts", CHOICES["layout.name"])):
        allowed = f"a list of some of {', '.join(words)}"
        _require(config, f"plan.{key}", partial(_are_some_of, words), allowed)
    for key in ("batch_sizes", "accumulations"):
        _require(config, f"plan.{key}", lambda value: all(number >= 1 for number in value), "a list of numbers from 1")


def _validate_training(config: Config) -> None:
    optimizer = config.optimizer
    for key in ("optimizer.b1", "optimizer.b2", "optimizer.ema_decay"):
        _require(config, key, lambda value: value is None or 0 <= value < 1, "0 or more, below 1")
    if optimizer.final_learning_rate > optimizer.learning_rate:
        raise UserError(
            f"optimizer.final_learning_rate: found {optimizer.final_learning_rate:g}, allowed: at most "
            f"optimizer.learning_rate={optimizer.learning_rate:g}; lower it too"
        )
    if optimizer.warmup_steps >= optimizer.decay_steps:
        raise UserError(
            f"optimizer.warmup_steps: found {optimizer.warmup_steps}, allowed: fewer than "
            f"optimizer.decay_steps={optimizer.decay_steps}, which includes them"
        )
    profile = config.profile
    if profile.ablation and profile.name == "off":
        raise UserError(
            "profile.ablation: found true with profile=off, allowed: with profile=window; set profile=window"
        )
    if profile.name == "window" and profile.after_steps + profile.steps > config.train.steps:
        raise UserError(
            f"profile.steps: found {profile.steps} after profile.after_steps={profile.after_steps}, allowed: together "
            f"at most train.steps={config.train.steps}; lower either, or raise train.steps"
        )
    two = "2 or more, since the newest may be cut off while it is written"
    _require(config, "checkpoint.keep", lambda value: value >= 2, two)
    _require(config, "checkpoint.keep_every", lambda value: value is None or value >= 1, "1 or more, or null")
    _require(
        config,
        "evaluation.execute",
        lambda value: value <= config.model.horizon,
        f"at most model.horizon={config.model.horizon}",
    )


def _validate_devices(config: Config) -> None:
    train, hardware, mesh, launch = config.train, config.hardware, config.mesh, config.launch
    _require(config, "hardware.memory_share", lambda value: value is None or 0 < value <= 1, "above 0, at most 1")
    if hardware.count not in (None, mesh.size):
        raise UserError(
            f"hardware.count: found {hardware.count}, allowed: mesh.batch x mesh.fsdp = {mesh.batch} x {mesh.fsdp} = "
            f"{mesh.size}; choose another mesh, or set hardware.count={mesh.size}"
        )
    if config.remat.name == "auto" and hardware.hbm_bytes_per_s is None:
        raise UserError(
            f"remat: found auto with hardware={hardware.kind}, allowed: with hardware whose rates are known, h100, "
            "h200, a100 or tpu_v5e; name it, as in hardware=h100, or choose a remat"
        )
    if mesh.size % hardware.hosts:
        raise UserError(
            f"hardware.hosts: found {hardware.hosts}, allowed: a divisor of the mesh's {mesh.size} devices; "
            "change either"
        )
    if launch.name == "inline" and launch.processes != 1:
        raise UserError(
            f"launch.processes: found {launch.processes}, allowed with launch=inline: 1; choose launch=local"
        )
    if mesh.size % launch.processes:
        raise UserError(
            f"launch.processes: found {launch.processes}, allowed: a divisor of the mesh's {mesh.size} devices; "
            "change either"
        )
    group = train.accumulation * mesh.size
    if train.batch_size % group:
        nearest = max(1, round(train.batch_size / group)) * group
        raise UserError(
            f"train.batch_size: found {train.batch_size}, allowed: a multiple of train.accumulation x devices = "
            f"{train.accumulation} x {mesh.size} = {group}; the nearest is {nearest}"
        )


def _require(config: Config, key: str, holds: Callable[[Any], bool], allowed: str, fix: str = "") -> None:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    if not holds(value):
        raise UserError(f"{key}: found {value!r}, allowed: {allowed}; {fix or f'set {key}=...'}")


def _are_some_of(allowed: Collection[str], words: Collection[str]) -> bool:
    return bool(words) and set(words) <= set(allowed)


def _is_folder_name(text: str) -> bool:
    return 0 < len(text) <= 200 and "/" not in text and "\0" not in text and not text.startswith(".")
