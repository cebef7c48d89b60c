"""What the three layouts make four H100s say to each other: full pi0, compiled here, run nowhere.

python experiments/layouts/compile.py                  writes compiled.csv beside this file, prints it as tables
python experiments/layouts/compile.py --hlo FOLDER     keeps the programs in FOLDER, and compiles only what is not there

Each point compiles in a process of its own, which gives its memory back and starts with JAX_PLATFORMS=cpu.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sharder.table import write_csv

HERE = Path(__file__).parent
LAYOUTS = ("gather", "auto", "published")
SAMPLES = (4, 8, 16)  # a GPU
GPUS = 4
OVERRIDES = ("model=pi0", "data=lerobot", "data.root=/nowhere", "mesh=fsdp4", "remat=dots_no_batch", "attn=xla")

Point = dict[str, Any]  # a row of the table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hlo", type=Path, help="folder of compiled programs, read where they are there, else written")
    parser.add_argument("--point", nargs=2, metavar=("LAYOUT", "SAMPLES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        layout, samples = arguments.point
        print(json.dumps(point(layout, int(samples), arguments.hlo)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.hlo or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = [row for samples in SAMPLES for layout in LAYOUTS for row in in_a_process(layout, samples, folder)]
    write_csv(HERE / "compiled.csv", rows)
    print(tables(rows))


def in_a_process(layout: str, samples: int, folder: Path) -> list[Point]:
    command = [sys.executable, __file__, "--point", layout, str(samples), "--hlo", str(folder)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def point(layout: str, samples: int, folder: Path) -> list[Point]:
    """The rows of one program: a kind of collective and a sort of tensor each."""
    from sharder.compose import composed
    from sharder.measure.hlo import parse
    from sharder.predict import communication
    from sharder.predict.compiled import compiled, memory_bytes, program_for
    from sharder.provenance import environment

    config = composed("train", [*OVERRIDES, f"layout={layout}", f"train.batch_size={samples * GPUS}"])[0]
    program = program_for(config, "h100")
    text, about = folder / f"{layout}-{samples}.hlo", folder / f"{layout}-{samples}.json"
    if not about.exists():
        executable, here = compiled(program), environment({})
        text.write_text(executable.as_text())
        facts = {"jax": here["versions"]["jax"], "date": here["started"][:10], "git_commit": here["git_commit"]}
        about.write_text(json.dumps({"memory": memory_bytes(executable), **facts}) + "\n")
    facts = json.loads(about.read_text())
    memory = facts.pop("memory")
    rows = communication.of(program, parse(text.read_text()))
    return [
        {
            "layout": layout,
            "samples_per_gpu": samples,
            "kind": total.kind,
            "tensors": total.tensor,
            "payload_gb": round(total.payload_bytes / 1e9, 6),
            "sent_gb_per_gpu": round(total.sent_bytes / 1e9, 6),
            "collectives": total.count,
            "async_share": round(total.hidden_share, 3),
            "temporaries_gb": round(memory["temporaries"] / 1e9, 3),
            "arguments_gb": round(memory["arguments"] / 1e9, 3),
            **facts,
            "label": "compiled",
        }
        for total in communication.totals(rows)
    ]


def tables(rows: list[Point]) -> str:
    """Markdown: every program in a line, then what each of them moves, from a megabyte up."""
    summary = ["| samples a GPU | layout | payload GB | sent GB a GPU | async | temporaries GB | state and batch GB |"]
    detail = ["| samples a GPU | layout | kind | tensors | payload GB | sent GB a GPU | collectives | async |"]
    summary.append("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    detail.append("| ---: | --- | --- | --- | ---: | ---: | ---: | ---: |")
    for samples in SAMPLES:
        for layout in LAYOUTS:
            of_point = [row for row in rows if (row["layout"], row["samples_per_gpu"]) == (layout, samples)]
            payload = sum(row["payload_gb"] for row in of_point)
            sent = sum(row["sent_gb_per_gpu"] for row in of_point)
            hidden = sum(row["payload_gb"] * row["async_share"] for row in of_point) / payload
            memory = f"{of_point[0]['temporaries_gb']:.1f} | {of_point[0]['arguments_gb']:.1f}"
            summary.append(f"| {samples} | {layout} | {payload:.2f} | {sent:.2f} | {hidden:.0%} | {memory} |")
            detail += [
                f"| {samples} | {layout} | {row['kind']} | {row['tensors']} | {row['payload_gb']:.3f} | "
                f"{row['sent_gb_per_gpu']:.3f} | {row['collectives']} | {row['async_share']:.0%} |"
                for row in of_point
                if row["payload_gb"] >= 1e-3
            ]
    return "\n".join([*summary, "", *detail])


if __name__ == "__main__":
    main()
