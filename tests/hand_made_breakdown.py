"""A breakdown whose numbers are chosen, for tests of what is said of it: 100 ms a step."""

from sharder.measure.attribution import Attribution, Spent
from sharder.measure.breakdown import Breakdown
from sharder.measure.categories import ATTENTION, COLLECTIVES, MLP, OPTIMIZER, Place

MS = 1e6


def breakdown(
    problems: tuple[str, ...] = (),
    recomputation_ms: float = 20.0,
    gather_ms: float = 10.0,
    idle_ms: float = 6.0,
    data_wait_ms: float = 4.0,
    attention_ms: float = 0.0,
    ablation: dict[str, float] | None = None,
) -> Breakdown:
    """The rest of the 100 ms is the MLP's forward and backward pass, two to one, less 10 ms of the optimizer."""
    mlp_ms = 100.0 - recomputation_ms - gather_ms - idle_ms - data_wait_ms - attention_ms - 10.0
    table = {
        Place(MLP, "", "backward"): Spent(mlp_ms * 2 / 3 * MS, flops=2e9, bytes=1e9),
        Place(MLP, "", "forward"): Spent(mlp_ms / 3 * MS, flops=1e9, bytes=1e9),
        Place(MLP, "", "recomputation"): Spent(recomputation_ms * MS, flops=1e9),
        Place(OPTIMIZER, "", "outside"): Spent(10.0 * MS),
        Place(COLLECTIVES, "all-gather", "forward"): Spent(gather_ms * MS, hidden_ns=30.0 * MS),
    }
    if attention_ms:
        table[Place(ATTENTION, "", "forward")] = Spent(attention_ms * MS)
    found = Attribution(
        steps=5,
        device_count=2,
        wall_ns=100 * MS,
        table=table,
        data_wait_ns=data_wait_ms * MS,
        idle_ns=idle_ms * MS,
        unseen_ns=0.0,
        divided_ns=7.0 * MS,
        inferred_ns=1.0 * MS,
        problems=problems,
    )
    window = {
        "steps": 5,
        "waiting_ms": {"data": 20.0, "peers": 5.0, "pause": 10.0, "host": 1.0},
        "flop": {"devices": 2, "device_kind": "cpu"},
        "attn": "naive",
        "remat": "full",
        "layout": "gather",
    }
    return Breakdown(window, found, ablation)
