"""Pages with everything on them that can be: figures, tables, a video."""

from pathlib import Path

import numpy as np
from made_runs import add_breakdown, add_plan, add_run, make_folder, write_json

from sharder.data.planar_arm_video import write_video
from sharder.report.__main__ import main


def experiments_page(root: Path) -> Path:
    """Of strong_scaling: published, predicted and measured; one figure with two panels, one of memory."""
    kept, outputs = root / "experiments", root / "outputs"
    published = kept / "strong_scaling" / "published.csv"
    published.parent.mkdir(parents=True)
    published.write_text(
        "kind,model,hardware,devices,mesh,system,batch_size,step_ms\n"
        "published,pi0_made,NVIDIA H100 80GB HBM3,1,single,published,8,195.6\n"
        "published,pi0_made,NVIDIA H100 80GB HBM3,2,fsdp2,published,8,169.3\n"
        "published,pi0_made,NVIDIA H100 80GB HBM3,8,fsdp8,published,8,120.0\n"
    )
    for devices, mesh in ((1, "single"), (2, "fsdp2"), (4, "fsdp4")):
        for system, step_ms in (("published", 200.0), ("sharder", 130.0)):
            overrides = [f"mesh={mesh}", f"system={system}", "experiment=strong_scaling"]
            folder = make_folder(outputs, overrides, "strong_scaling", ",".join(overrides))
            add_plan(folder, devices, step_ms / devices)
            rows = [{"step": step, "step_ms": step_ms / devices + 3 + step / 10} for step in (5, 10, 15, 20)]
            add_run(folder, rows, devices=devices)
        add_plan(make_folder(outputs, [f"mesh={mesh}", "experiment=memory"], "memory", f"mesh={mesh}"), devices)
    for name in ("strong_scaling", "memory"):
        assert main([f"experiment={name}", f"run.root={outputs}", f"kept={kept}"]) == 0
    return outputs / "report.html"


def run_page(root: Path) -> Path:
    """Of a run that was planned, trained, restarted, profiled and evaluated."""
    overrides = ["model=pi0_micro", "data.planar_arm.episodes=20", "profile=window", "tracking=off"]
    id = "data.planar_arm.episodes=20,data=planar_arm,mesh=single,model=pi0_micro,profile=window,train.steps=80"
    folder = add_plan(make_folder(root, overrides, id=id))
    rows = [{"step": step, "loss": 3.0 / step, "step_ms": 90.0 + step, "mfu": 0.3} for step in range(10, 60, 10)]
    again = {"attempt": 1, "loss": 0.05, "step_ms": 95.0, "mfu": 0.31, "device_ms": 90.0, "host_ms": 5.0}
    rows += [{"step": 50, "resumed_at": 40} | again, {"step": 60, "success_rate": 0.9, "success_episodes": 50} | again]
    add_run(folder, rows)
    add_breakdown(folder)
    (folder / "checkpoints" / "60").mkdir(parents=True)
    evaluation = make_folder(root, name="evaluate", id="later")
    share = {"success_rate": 0.9, "episodes": 50}
    baselines = {"random_policy": {"success_rate": 0.02, "episodes": 50}}
    told = {"checkpoint": str(folder.absolute() / "checkpoints" / "60"), "step": 60, "baselines": baselines}
    write_json(evaluation / "evaluation.json", told | share)
    write_video(evaluation / "evaluation.mp4", np.zeros((4, 64, 384, 3), np.uint8))
    for one in (folder, evaluation):
        assert main([f"resume={one}"]) == 0
    return folder / "report.html"
