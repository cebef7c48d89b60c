"""Compiles the train step of pi0_micro for an H100; prints JSON of the bytes that its update of the weights moves."""

import json

from sharder.compose import composed
from sharder.data.dataset import open_dataset
from sharder.measure.costs import Costs
from sharder.measure.hlo import parse
from sharder.model.pi0 import CAMERAS
from sharder.parallel.mesh import make_mesh
from sharder.predict.compiled import compiled
from sharder.predict.target import gpu_devices
from sharder.training.program import make_program

OVERRIDES = ["model=pi0_micro", "data=fixed", "optimizer=adamw", "train.batch_size=4"]  # clipped, with an average
config = open_dataset(composed("train", OVERRIDES)[0]).config
program = make_program(config, make_mesh(config.mesh, gpu_devices("h100", 1, 1)), CAMERAS)
module = parse(compiled(program).as_text())
costs = Costs(module)
updates = [  # that write a weight, its moments and its average, or those of several weights
    one
    for one in module.entry.instructions
    if one.opcode == "fusion"
    and len(one.shapes) >= 4
    and any("optimizer" in part.op_name.split("/") for part, _ in costs.parts(one.name))
]
moved = {
    "moved": sum(costs.of(update.name).bytes for update in updates),
    "written": sum(4 * shape.elements for update in updates for shape in update.shapes),  # float32
}
weights = sum(weight.size * weight.dtype.itemsize for weight in program.state.trainable.values())
print(json.dumps({"weights": weights, **moved}))
