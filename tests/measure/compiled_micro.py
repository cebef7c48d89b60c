"""Run by test_categories.py: compiles the train step of a pi0 of micro size for the CPU, and writes its HLO.

python compiled_micro.py <remat> <layout> <devices> <file>
"""

import sys
from pathlib import Path

import jax

from sharder.config import AugmentConfig, Config, ExpertConfig, ModelConfig, OptimizerConfig, VisionConfig
from sharder.model.pi0 import CAMERAS
from sharder.parallel.mesh import make_mesh
from sharder.training.program import make_program

FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # the same HLO, slower code


def config(remat: str, layout: str, devices: int) -> Config:
    result = Config()
    result.model = ModelConfig(
        name="micro",
        vision=VisionConfig(16, 2, 32, 2, 8),
        language=ExpertConfig(16, 2, 32, 2, 1, 8),
        action=ExpertConfig(16, 2, 32, 2, 1, 8),
        vocabulary=264,
        image_size=16,
        action_dim=4,
        horizon=4,
        prompt_tokens=24,
        compute_dtype="float32",
    )
    result.data.augment = AugmentConfig(brightness=0.1)
    result.optimizer = OptimizerConfig(3e-3, 1e-3, warmup_steps=2, decay_steps=100, ema_decay=0.9)
    result.train.batch_size = 4
    result.remat.name, result.layout.name, result.mesh.fsdp = remat, layout, devices
    return result


def main(remat: str, layout: str, devices: int, path: Path) -> None:
    jax.config.update("jax_num_cpu_devices", devices)
    composed = config(remat, layout, devices)
    program = make_program(composed, make_mesh(composed.mesh), CAMERAS[:1])
    path.write_text(program.compile(more=FAST).as_text())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
