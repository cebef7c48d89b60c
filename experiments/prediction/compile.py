"""The published system's programs (`experiment=published`), compiled here for H100s that are not here.

python experiments/prediction/compile.py --hlo FOLDER [NAME ...]     compiles what FOLDER has not; no NAME: all of them

Each compiles in a process of its own, half a minute to two minutes and 1.3 GB, and leaves <NAME>.hlo.gz.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


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


def overrides(variant: Variant) -> list[str]:
    mesh = "single" if variant.gpus == 1 else f"fsdp{variant.gpus}"
    chosen = [f"mesh={mesh}", f"attn={variant.attn}", f"train.batch_size={variant.batch_size}"]
    if variant.tuned:
        chosen.append("overlap=published")
    if variant.adamw:
        chosen += ["optimizer=adamw", "optimizer.ema_decay=null"]
    return ["experiment=published", *chosen]


def compiled_text(variant: Variant) -> str:
    from sharder.compose import composed
    from sharder.predict.compiled import compiled, program_for

    text = compiled(program_for(composed("plan", overrides(variant))[0], "h100")).as_text()
    assert text is not None
    return text


if __name__ == "__main__":
    main()
