"""The published system's programs, compiled here for H100s that are not here: forward and backward of full pi0.

python experiments/prediction/compile.py --hlo FOLDER [NAME ...]     compiles what FOLDER has not; no NAME: all of them

As that system is described: its layout (weights on their largest axis, all else left to XLA), bfloat16 weights, every
layer recomputed, a call of the vision encoder for each camera, no optimizer but where a point says so. What enters and
leaves a layer is split by example there: so it gathers the activations of every MLP, and the weights of attention. Left
alone with our model, XLA splits it by channel. Each compiles in a process of its own, about a minute and 1.3 GB, and
leaves <NAME>.hlo.gz.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TUNED = {  # as published
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_enable_pipelined_all_gather": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
    "xla_gpu_enable_pipelined_all_reduce": True,
    "xla_gpu_all_gather_combine_threshold_bytes": 2**30,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 2**30,
    "xla_gpu_enable_while_loop_double_buffering": True,
}


@dataclass(frozen=True)
class Variant:
    attn: str
    gpus: int
    batch_size: int  # global
    tuned: bool = False
    adamw: bool = False

    @property
    def name(self) -> str:
        more = "-tuned" * self.tuned + "-adamw" * self.adamw
        return f"{self.attn}-{self.gpus}gpu-batch{self.batch_size}{more}"


VARIANTS = (
    Variant("naive", 1, 4),
    Variant("naive", 2, 8),
    Variant("xla", 1, 4),
    Variant("naive", 4, 16),
    Variant("naive", 2, 4),
    Variant("naive", 4, 4),
    Variant("xla", 4, 16),
    Variant("xla", 2, 8),
    Variant("xla", 4, 16, tuned=True),
    Variant("xla", 2, 8, tuned=True),
    Variant("xla", 1, 4, tuned=True),
    Variant("naive", 1, 4, adamw=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hlo", type=Path, required=True, help="folder of compiled programs")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(one.name for one in VARIANTS))
    arguments = parser.parse_args()
    arguments.hlo.mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        path = arguments.hlo / f"{variant.name}.hlo.gz"
        if path.exists() or (arguments.names and variant.name not in arguments.names):
            continue
        if arguments.here:
            path.write_bytes(gzip.compress(compiled_text(variant).encode(), 6))
        else:
            command = [sys.executable, __file__, "--here", "--hlo", str(arguments.hlo), variant.name]
            subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}, check=True)
            print(variant.name, flush=True)


def config_of(variant: Variant) -> Any:
    from sharder.compose import composed

    mesh = "single" if variant.gpus == 1 else f"fsdp{variant.gpus}"
    overrides = ["model=pi0", "data=lerobot", "data.root=/nowhere", "layout=published", "remat=full"]
    overrides += [f"mesh={mesh}", f"attn={variant.attn}", "model.weight_dtype=bfloat16", "optimizer=adamw"]
    return composed("train", [*overrides, "optimizer.ema_decay=null", f"train.batch_size={variant.batch_size}"])[0]


def compiled_text(variant: Variant) -> str:
    import jax

    from sharder.model.pi0 import Observation, flow_matching_loss
    from sharder.predict.compiled import WITHOUT_A_GPU, program_for
    from sharder.training.step import draw_noise, draw_time, example_keys, observe

    program = program_for(config_of(variant), "h100")
    config = program.config
    with_cameras_apart()
    with_layers_split_by_example(program.mesh)
    options = {**WITHOUT_A_GPU, **(TUNED if variant.tuned else {})}
    if variant.adamw:
        text = program.compile(more=options).as_text()
        assert text is not None
        return text

    def loss(weights: Any, batch: Any, keys: Any) -> Any:
        from sharder.model.pi0 import build

        model = build(config.model, weights, program.execution)
        observation: Observation = observe(batch)
        noise = draw_noise(keys, batch["actions"].shape[1:])
        return flow_matching_loss(model, observation, batch["actions"], noise, draw_time(keys)).mean()

    def step(weights: Any, batch: Any) -> Any:
        keys = example_keys(0, jax.numpy.int32(0), variant.batch_size)
        return jax.value_and_grad(loss)(weights, batch, keys)

    text = jax.jit(step).lower(program.state.trainable, program.batch).compile(compiler_options=options).as_text()
    assert text is not None
    return text


def with_cameras_apart() -> None:
    """From here on this process's models see the cameras one after the other, as the published system does."""
    from sharder.model.pi0 import CAMERAS, Observation, Pi0

    def embed_cameras(self: Pi0, observation: Observation) -> Iterator[tuple[str, Any]]:
        return ((camera, self.vision(observation.images[camera], self.execution)) for camera in CAMERAS)

    Pi0.embed_cameras = embed_cameras  # type: ignore[method-assign]


def with_layers_split_by_example(mesh: Any) -> None:
    """From here on this process's layers pass each other what belongs to a device's own examples, whole."""
    import jax

    from sharder.model.execution import Execution
    from sharder.parallel.mesh import batch_split

    scan_layers = Execution.scan_layers

    def scan_split(self: Execution, stack: str, layers: Any, step: Any, carry: Any, per_layer: Any = None) -> Any:
        def split(tree: Any) -> Any:
            return jax.lax.with_sharding_constraint(tree, batch_split(mesh))

        def split_step(layer: Any, carry: Any, part: Any) -> Any:
            carry, output = step(layer, split(carry), part)
            return split(carry), output

        return scan_layers(self, stack, layers, split_step, carry, per_layer)

    Execution.scan_layers = scan_split  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
