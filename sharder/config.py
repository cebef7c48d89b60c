"""The typed config of a run, and every check that needs neither data nor devices.

Hydra composes `conf/` against these dataclasses, so an unknown key or a wrong type is caught while composing;
`validate` then checks what types cannot say. Nothing here imports jax: a config is refused before anything slow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RunConfig:
    name: str = "train"  # the folder under run.root that groups runs; an experiment preset sets its own
    id: str | None = None  # names the run folder; made once by the command when not given
    root: str = "outputs"


@dataclass
class TrainConfig:
    steps: int = 1000
    batch_size: int = 32  # global: over all devices and accumulation
    accumulation: int = 1  # microbatches a step
    seed: int = 0
    log_every: int = 10  # steps
    on_nonfinite: str = "stop"  # stop | skip: what a loss or gradient that is no finite number means


@dataclass
class VisionConfig:
    """A SigLIP tower: `image_size / patch` squared tokens a camera."""

    width: int = 1152
    depth: int = 27
    mlp_dim: int = 4304
    heads: int = 16
    patch: int = 14  # pixels


@dataclass
class ExpertConfig:
    """One Gemma expert. Depth, heads, kv_heads and head_dim must agree between the experts: they share attention."""

    width: int = 2048
    depth: int = 18
    mlp_dim: int = 16384
    heads: int = 8
    kv_heads: int = 1
    head_dim: int = 256
    lora_rank: int = 0  # 0: no LoRA
    lora_alpha: float = 1.0


@dataclass
class ModelConfig:
    name: str = "pi0"
    variant: str = "pi0"  # pi0 | pi05
    vision: VisionConfig = field(default_factory=VisionConfig)
    language: ExpertConfig = field(default_factory=ExpertConfig)
    action: ExpertConfig = field(default_factory=ExpertConfig)
    vocabulary: int = 257152
    image_size: int = 224  # pixels
    action_dim: int = 32  # 0: as many as the data has
    horizon: int = 50  # actions a chunk
    prompt_tokens: int = 48  # 0: as many as the data's longest prompt needs
    weight_dtype: str = "float32"  # float32 | bfloat16
    compute_dtype: str = "bfloat16"  # float32 | bfloat16
    freeze: list[str] = field(default_factory=list)  # prefixes of weight paths that are not trained (LoRA always is)
    weights: str | None = None  # start from this checkpoint instead of random weights
    flow_steps: int = 10  # Euler steps of sample_actions


@dataclass
class AugmentConfig:
    """Applied on the device, keyed per example. All zeros (and crop 1) is no augmentation."""

    crop: float = 0.95  # side of the random crop as a share of the image
    rotation_degrees: float = 5.0
    brightness: float = 0.3
    contrast: float = 0.4
    saturation: float = 0.5
    geometric_except: list[str] = field(default_factory=list)  # cameras that are neither cropped nor rotated


@dataclass
class PlanarArmConfig:
    episodes: int = 400
    image_size: int = 32  # pixels
    seed: int = 0


@dataclass
class CamerasConfig:
    """The recording's key for each camera of the model; all null: matched by name."""

    base_0_rgb: str | None = None
    left_wrist_0_rgb: str | None = None
    right_wrist_0_rgb: str | None = None

    def chosen(self) -> dict[str, str] | None:
        """Model camera -> recording's key, of the cameras named here; None when none is."""
        return {camera: key for camera, key in vars(self).items() if key} or None

    def chosen_or_all(self) -> tuple[str, ...]:
        """Model cameras: those named here, or where none is, all there can be."""
        return tuple(self.chosen() or vars(self))


@dataclass
class DataConfig:
    kind: str = "planar_arm"  # planar_arm | lerobot | fixed
    root: str | None = None  # folder of the LeRobot set; planar_arm: null = the user's cache folder
    cameras: CamerasConfig = field(default_factory=CamerasConfig)
    state: str = "observation.state"
    action: str = "action"
    prompt: str | None = None  # fixed instruction; null: each episode's own task
    episodes: list[int] | None = None  # null: all
    normalization: str = "auto"  # auto (pi0: mean_std, pi05: quantiles) | mean_std | quantiles | none
    normalization_file: str | None = None  # openpi's norm_stats.json
    min_range: float = 1e-2  # floor of a dimension's range (q99 - q01, or 4.65 std), in the recording's own unit
    tokenizer: str = "bytes"  # bytes, or the path of a SentencePiece model
    workers: int = 1  # processes that decode; 0: a thread of the training process
    prefetch: int = 4  # batches made ahead
    decoders: int = 32  # open video decoders a worker keeps
    frames: str = "auto"  # auto (decoded where there is room) | decoded (once, onto the disk) | on_demand
    decoded_gib: float = 32.0  # GiB of disk that decoded frames of all recordings may take
    frame_cache_mib: int = 256  # MiB of frames a worker keeps when they are decoded on demand
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    planar_arm: PlanarArmConfig = field(default_factory=PlanarArmConfig)

    @property
    def has_simulator(self) -> bool:
        """Can a policy be rolled out where these data come from?"""
        return self.kind == "planar_arm" and self.root is None


@dataclass
class OptimizerConfig:
    learning_rate: float = 2.5e-5  # peak
    final_learning_rate: float = 2.5e-6
    warmup_steps: int = 1000
    decay_steps: int = 30000
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 1e-10
    clip_norm: float = 1.0
    ema_decay: float | None = 0.99  # null: no EMA
    updates: bool = True  # False: a step computes gradients and keeps them, no weight moves; for measuring


@dataclass
class MeshConfig:
    batch: int = 1  # devices along it hold other examples and the same weights
    fsdp: int = 1  # devices along it hold other examples and other slices of the weights

    @property
    def size(self) -> int:
        return self.batch * self.fsdp


@dataclass
class LayoutConfig:
    """Who holds which slice, and who writes the collectives."""

    name: str = "gather"  # gather | auto | published
    reduction: str = "auto"  # auto | fixed_order | transport
    min_shard_bytes: int = 16384  # of one layer: smaller weights are held whole by every device


@dataclass
class ScalingConfig:
    """What becomes of the batch when there are more devices."""

    name: str = "fixed"  # fixed | strong | weak
    batch_per_device: int | None = None  # weak: train.batch_size is this times the mesh's devices


@dataclass
class OverlapConfig:
    """What XLA is told about running collectives beside other work."""

    name: str = "default"  # default | off | published
    flags: list[str] = field(default_factory=list)  # name=value, as in XLA_FLAGS without the dashes


@dataclass
class WorkConfig:
    """Work that a step can be spared without another result: all of it, but to compare with systems that do it."""

    name: str = "least"  # least | unrolled | published
    cameras_together: bool = True  # one pass of the vision encoder for all cameras
    absent_cameras: bool = False  # a camera that the data lack is run all the same, black and masked
    unroll: bool = False  # layers written out instead of a loop over them: the last does only what is read


@dataclass
class HardwareConfig:
    """The numbers of a device are for plan; a run reads none of them off a device that is there."""

    kind: str = "auto"  # auto | cpu | h100 | h200 | a100 | tpu_v5e
    count: int | None = None  # devices over all hosts; null: as many as the mesh has
    hosts: int = 1
    device_kind: str | None = None  # what jax calls the device; its peak FLOP/s are in measure/peaks.py
    peak_flops_per_s: float | None = None  # dense, of one device in the compute dtype; null: looked up
    hbm_bytes: int | None = None  # of one device
    memory_share: float | None = None  # of it, what a program can have
    hbm_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None  # of one device to others of its host, each way
    link_latency_s: float | None = None  # of one collective
    network_bytes_per_s: float | None = None  # of one device to other hosts, each way


@dataclass
class PlanConfig:
    """What `python -m sharder.plan` does beside planning the run as it is."""

    search: str = "none"  # none | batch: the largest batch that fits | fastest: of what the lists below combine to
    remats: list[str] = field(default_factory=lambda: ["none", "dots", "dots_no_batch", "full"])
    layouts: list[str] = field(default_factory=lambda: ["gather", "auto"])
    batch_sizes: list[int] = field(default_factory=list)  # empty: train.batch_size
    accumulations: list[int] = field(default_factory=list)  # empty: train.accumulation
    alternatives: bool = True  # what does not fit: look for the first changes that make it fit


@dataclass
class TrackingConfig:
    mode: str = "offline"  # offline | online | off
    project: str = "sharder"
    ledger: bool = False  # write down which examples every step consumed


@dataclass
class CheckpointConfig:
    every_steps: int = 1000
    keep: int = 2  # newest ones kept
    keep_every: int | None = None  # steps; those divisible by it are never deleted
    at_end: bool = True  # the last step is saved too


@dataclass
class EvaluationConfig:
    """Closed-loop evaluation in the simulator; recordings without one are not rolled out."""

    episodes: int = 50
    seed: int = 1_000_000  # starts never seen in training
    max_steps: int = 60
    execute: int = 4  # actions of a chunk executed before the next is sampled
    frames: int = 256  # frames scored against recorded actions, where there is no simulator
    at_start: bool = True  # before training
    at_end: bool = True


@dataclass
class LimitsConfig:
    """How long a supervised worker may go without progress, in seconds, by what it is doing."""

    start_s: float = 600.0
    decode_s: float = 21600.0
    restore_s: float = 1800.0
    compile_s: float = 3600.0
    first_step_s: float = 1800.0
    step_s: float = 600.0
    data_wait_s: float = 1800.0
    save_s: float = 1800.0
    evaluate_s: float = 3600.0
    end_s: float = 300.0


@dataclass
class LaunchConfig:
    """How workers are started, how long processes wait for one another, and what becomes of those that fail."""

    name: str = "inline"  # inline | local | supervised
    processes: int = 1  # workers on this machine
    min_processes: int = 1  # a relaunch may do with as few, where there is no room for more
    retries: int = 3  # relaunches since the last new checkpointed step
    same_failure: int = 2  # the same failure at the same step, this many times, ends the run
    backoff_s: float = 1.0  # before a relaunch; doubled each time without progress, a minute at most
    grace_s: float = 30.0  # for workers to save and end after a signal
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    start_timeout_s: float = 600.0  # for every process to answer the roll call
    barrier_timeout_s: float = 1800.0  # for every process to reach a named point
    late_after_s: float = 10.0  # who is missing is named after this long, and again and again
    preflight_timeout_s: float = 120.0  # for the first collective to return


@dataclass
class ProfileConfig:
    name: str = "off"  # off | window
    after_steps: int = 10  # steps of this attempt before the window, which are not like the others yet
    steps: int = 5  # steps that are traced
    ablation: bool = False  # afterwards time the step without its attention too, as a check


@dataclass
class ReportConfig:
    """The figure of a sweep: which columns of its rows it shows. What can be a column: sharder/report/rows.py."""

    title: str = ""  # what it shows
    rows: str = "run"  # run | step: what is a row of its table
    draw: str = "lines"  # lines | bars | stacked
    x: str = ""  # column: along the axis
    y: list[str] = field(default_factory=list)  # columns, a panel each; stacked: what is laid on one another
    series: list[str] = field(default_factory=list)  # columns whose values make a line, or a bar, of its own
    unit: str = ""  # of what is stacked


@dataclass
class ChoiceConfig:
    """A group whose option is one word (attn, remat ...)."""

    name: str


@dataclass
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    attn: ChoiceConfig = field(default_factory=lambda: ChoiceConfig("naive"))
    remat: ChoiceConfig = field(default_factory=lambda: ChoiceConfig("none"))
    overlap: OverlapConfig = field(default_factory=OverlapConfig)
    work: WorkConfig = field(default_factory=WorkConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    resume: str = "auto"
    system: Any = None
    experiment: Any = None
