"""Compiles a step of the micro model for H100s in many ways, and counts calls into cuDNN's attention; prints JSON.

python attention_calls.py <mesh> <layout> ...      with every remat, in a loop and written out
"""

import itertools
import json
import re
import sys

from sharder.compose import composed
from sharder.model.pi0 import CAMERAS
from sharder.parallel.mesh import make_mesh
from sharder.predict.compiled import compiled
from sharder.predict.target import target_devices
from sharder.training.program import make_program

CALL = re.compile(r'custom_call_target="__cudnn\$fmhaSoftmax(Backward)?"')
found = {}
mesh, *layouts = sys.argv[1:]
for layout, work, remat in itertools.product(layouts, ("least", "unrolled"), ("none", "dots_no_batch", "full")):
    typed = ["model=pi0_micro", "model.compute_dtype=bfloat16", "data=fixed", "hardware=h100", "train.batch_size=8"]
    typed += ["attn=flash", f"mesh={mesh}", f"layout={layout}", f"work={work}", f"remat={remat}"]
    config = composed("plan", typed)[0]
    program = make_program(config, make_mesh(config.mesh, target_devices(config.hardware, config.mesh.size)), CAMERAS)
    calls = CALL.findall(compiled(program).as_text() or "")
    found[f"{layout} {work} {remat}"] = [calls.count(""), calls.count("Backward")]
print(json.dumps(found))
