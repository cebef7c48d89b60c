"""Fits the model's two constants on two published steps, and compares it with every published step.

python experiments/prediction/fit.py --hlo FOLDER          prints the fit, its residuals and the comparison
python experiments/prediction/fit.py --hlo FOLDER --write  and writes predicted.csv beside this file

FOLDER: what compile.py left there. What is written uses the constants that sharder/predict/calibrate.py has; the fit is
printed beside them.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
from functools import cache
from pathlib import Path
from typing import Any

from sharder.compose import composed
from sharder.config import HardwareConfig
from sharder.measure.hlo import Module, parse
from sharder.predict.calibrate import LINK_LATENCY_S, MATMUL_EFFICIENCY, solve
from sharder.predict.timing import ARITHMETIC, EXPOSED, GAPS, MEMORY, SLOWED, Assumptions, parts_of, scheduled
from sharder.table import write_csv

HERE = Path(__file__).parent
FITTED = ("naive-1gpu-batch4", "naive-2gpu-batch8")  # the efficiency on the first, then the latency on the second
COLUMNS = {"arithmetic": ARITHMETIC, "memory": MEMORY, "gaps": GAPS, "exposed": EXPOSED, "slowed": SLOWED}

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hlo", type=Path, required=True, help="folder of compiled programs")
    parser.add_argument("--write", action="store_true", help="write predicted.csv")
    arguments = parser.parse_args()
    published = list(csv.DictReader((HERE / "published.csv").read_text().splitlines()))
    measured = {row["program"]: float(row["step_ms"]) for row in published if row["table"] != "single_gpu"}
    fitted(arguments.hlo, measured)
    is_there = [(arguments.hlo / f"{row['program']}.hlo.gz").exists() for row in published]
    rows = [compared(arguments.hlo, row) for row, there in zip(published, is_there, strict=True) if there]
    if arguments.write:
        write_csv(HERE / "predicted.csv", rows)
    print(table(rows))
    print(summary(rows))
    missing = sorted({row["program"] for row, there in zip(published, is_there, strict=True) if not there})
    if missing:
        print(f"not compared, as compile.py has not made them: {', '.join(missing)}")


def fitted(folder: Path, measured: dict[str, float]) -> None:
    """Prints both constants as the two steps ask for them, and what is left."""
    alone, together = FITTED
    measured = measured | {alone: 195.6}  # published as 195.5 in another table

    def with_efficiency(value: float) -> float:
        return step_ms(folder, alone, False, value, LINK_LATENCY_S)

    efficiency = solve(with_efficiency, measured[alone], 0.5, 1.0)
    latency = solve(lambda value: step_ms(folder, together, False, efficiency, value), measured[together], 0.0, 100e-6)
    print(f"efficiency of a product, fitted on {alone}: {efficiency:.4f} (in use: {MATMUL_EFFICIENCY})")
    print(f"latency of a collective, fitted on {together}: {latency * 1e6:.2f} us (in use: {LINK_LATENCY_S * 1e6:.2f})")
    for name in FITTED:
        found = step_ms(folder, name, False, MATMUL_EFFICIENCY, LINK_LATENCY_S)
        print(f"residual on {name}: {found - measured[name]:+.2f} ms of {measured[name]}")


def step_ms(folder: Path, name: str, overlap: bool, efficiency: float, latency_s: float) -> float:
    assumed = Assumptions(matmul_efficiency=efficiency, overlap=overlap)
    return 1e3 * scheduled(module(folder, name), hardware(latency_s), assumed).step_s


def compared(folder: Path, row: Row) -> Row:
    """`default`: with nothing hidden, as those points were run; `tuned`: as the compiler scheduled it."""
    assumed = Assumptions(overlap=row["schedule"] == "tuned")
    found = scheduled(module(folder, row["program"]), hardware(LINK_LATENCY_S), assumed)
    measured, predicted = float(row["step_ms"]), round(1e3 * found.step_s, 1)
    parts = parts_of(found)
    return {
        **{key: row[key] for key in ("table", "gpus", "batch_size", "attn", "optimizer", "schedule")},
        "measured_ms": measured,
        "predicted_ms": predicted,
        "error": round(predicted / measured - 1, 4),
        "fitted": row["program"] in FITTED,
        **{f"{column}_ms": round(1e3 * parts[part], 1) for column, part in COLUMNS.items()},
        "label": "predicted",
    }


@cache
def module(folder: Path, name: str) -> Module:
    return parse(gzip.decompress((folder / f"{name}.hlo.gz").read_bytes()).decode())


@cache
def hardware(latency_s: float) -> HardwareConfig:
    config = composed("train", ["hardware=h100"])[0]
    return dataclasses.replace(config.hardware, link_latency_s=latency_s)


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = ["| table | GPUs | batch | attn | schedule | measured ms | predicted ms | error | |"]
    lines.append("| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | --- |")
    for row in rows:
        attn = row["attn"] + (", AdamW" if row["optimizer"] == "adamw" else "")
        lines.append(
            f"| {row['table']} | {row['gpus']} | {row['batch_size']} | {attn} | {row['schedule']} | "
            f"{row['measured_ms']} | {row['predicted_ms']} | {row['error']:+.1%} | {'fitted' * row['fitted']} |"
        )
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    errors = [abs(row["error"]) for row in rows if not row["fitted"]]
    return (
        f"{len(errors)} points held out of the fit: mean absolute error {sum(errors) / len(errors):.1%}, worst "
        f"{max(errors):.1%}"
    )


if __name__ == "__main__":
    main()
