"""Compiles a pi0 train step of 4 samples a GPU for H100s, and writes down what the tests ask about it.

python compiled_layout.py <layout> <mesh> <hosts> <folder>     ->  <folder>/program.hlo, <folder>/facts.pickle
"""

import pickle
import sys
from pathlib import Path

import jax
from jax.sharding import Sharding

from sharder.compose import composed
from sharder.measure.hlo import parse
from sharder.parallel.layout import device_bytes
from sharder.predict import communication
from sharder.predict.compiled import compiled, memory_bytes, program_for
from sharder.training.state import state_bytes

layout, mesh, hosts, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
devices = {"fsdp4": 4, "hsdp2x4": 8}[mesh]
overrides = ["model=pi0", "data=lerobot", "data.root=/nowhere", "remat=dots_no_batch", "attn=xla"]
config = composed("train", [*overrides, f"layout={layout}", f"mesh={mesh}", f"train.batch_size={4 * devices}"])[0]
program = program_for(config, "h100", hosts)
executable = compiled(program)


def misplaced(target: jax.ShapeDtypeStruct, found: Sharding) -> bool:
    return not found.is_equivalent_to(target.sharding, len(target.shape))


text = executable.as_text()
(folder / "program.hlo").write_text(text)
facts = {
    "rows": communication.of(program, parse(text)),
    "ideal": communication.ideal_bytes(program),
    "memory": memory_bytes(executable),
    "state_bytes": state_bytes(program.state),
    "device_bytes": device_bytes((program.state, program.batch)),
    "misplaced": sum(jax.tree.leaves(jax.tree.map(misplaced, program.state, executable.output_shardings[0]))),
    "weights": {
        path: (weight.shape, program.layout[path], path in program.state.trainable)
        for path, weight in program.state.weights.items()
    },
}
(folder / "facts.pickle").write_bytes(pickle.dumps(facts))
