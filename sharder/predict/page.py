"""A plan in a page: GB = 10^9 bytes; sizes are compiled, times are predicted, nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sharder.config import Config
from sharder.predict.alternatives import Alternative
from sharder.predict.batch_search import Tried
from sharder.predict.communication import Total
from sharder.predict.fastest import Candidate
from sharder.predict.memory import FRACTION, OLD_FRACTION, Memory
from sharder.predict.plan import Plan
from sharder.predict.sizes import in_words, unit_of
from sharder.predict.timing import Spending, Timing
from sharder.predict.traffic import Moved, Traffic
from sharder.table import Table

SHORT_STEP_MS = 10.0
WORTH_A_LINE = 1e-4  # of all payload: smaller totals are in plan.json alone


def tables(
    plan: Plan,
    alternatives: Sequence[Alternative] = (),
    tried: Sequence[Tried] = (),
    ranked: Sequence[Candidate] = (),
) -> Iterator[Table]:
    yield Table(heading(plan))
    yield memory_table(plan)
    if plan.traffic is not None and plan.traffic.moved:
        yield traffic_table(plan.traffic, plan.totals, plan.timing)
    if plan.timing is not None:
        yield from time_tables(plan.timing)
    if ranked:
        yield ranked_table(plan, ranked)
    if tried:
        yield tried_table(plan, tried)
    if alternatives:
        yield alternatives_table(plan, alternatives)


def choices_line(config: Config) -> str:
    mesh, train = config.mesh, config.train
    return (
        f"{config.model.name}, mesh {mesh.batch} x {mesh.fsdp}, batch {train.batch_size} in {train.accumulation}, "
        f"layout={config.layout.name} remat={config.remat.name} attn={config.attn.name}, weights "
        f"{config.model.weight_dtype}, {'no average' if config.optimizer.ema_decay is None else 'with average'}"
    )


def heading(plan: Plan) -> str:
    chosen, hardware = plan.choices, plan.hardware
    parts = f" in {chosen.accumulation} microbatches" if chosen.accumulation > 1 else ""
    lines = {
        "planned for": f"{hardware.devices} x {hardware.device_kind} of {hardware.hosts} "
        f"{'host' if hardware.hosts == 1 else 'hosts'}; compiled with jax {plan.jax_version}, nothing was run",
        "run": f"{chosen.model}, batch {chosen.batch_size}{parts}, {len(chosen.cameras)} cameras; mesh batch "
        f"{chosen.mesh[0]} x fsdp {chosen.mesh[1]}, layout={chosen.layout} remat={chosen.remat} attn={chosen.attn}",
        "memory": verdict(plan.memory),
        "a save": f"{in_words(plan.saving.host_bytes)} of a host's memory, {in_words(plan.saving.disk_bytes)} on disk; "
        f"{plan.saving.kept} at once at most, {in_words(plan.saving.kept * plan.saving.disk_bytes)}",
    }
    if plan.memory.held_whole:
        lines["held whole"] = f"by every device: {', '.join(plan.memory.held_whole)}"
    if plan.traffic is not None:
        lines["traffic"] = plan.traffic.said
    if plan.timing is not None:
        lines["time"] = time_said(plan.timing)
        lines["products"] = flops_said(plan.timing)
        lines["known by"] = f"{plan.timing.model}: {plan.timing.accuracy}"
    return "\n".join(f"{name:<12}{text}" for name, text in lines.items())


def verdict(memory: Memory) -> str:
    limit, total = memory.limit_bytes, memory.total_bytes
    of = f"{in_words(limit)} a device, {memory.share:.0%} of {in_words(memory.hbm_bytes)} ({memory.share_source})"
    if memory.refused is not None:
        return f"does not fit in {of}: the compiler says {memory.refused}"
    if memory.fits:
        return f"fits: {in_words(total)} of {of}"
    text = f"does not fit: {in_words(total)}, {in_words(total - limit)} more than {of}"
    fraction = memory.fits_with_fraction
    name = OLD_FRACTION if memory.share_source.startswith(OLD_FRACTION) else FRACTION  # jax takes one of them
    return text if fraction is None else f"{text}; it would with {name}={fraction}"


def memory_table(plan: Plan) -> Table:
    memory = plan.memory
    unit = unit_of(memory.total_bytes)
    rows = [
        (part.kind, unit.text(part.bytes), f"{part.bytes / memory.limit_bytes:.1%}", part.source)
        for part in memory.parts
    ]
    total = "all that is placed" if memory.refused is not None else "total"
    rows.append((total, unit.text(memory.total_bytes), f"{memory.total_bytes / memory.limit_bytes:.1%}", ""))
    head = ("memory of one device, at its peak", unit.name, "of the limit", "from")
    return Table("", head, rows, head[1:3])


def traffic_table(traffic: Traffic, totals: Sequence[Total], timing: Timing | None) -> Table:
    """A collective that moves several tensors takes its time for each in proportion to its bytes."""
    unit = unit_of(traffic.payload_bytes)
    waits = {one.name: (one.alone_ms, one.exposed_ms) for one in timing.transfers} if timing else {}
    payloads: dict[str, int] = {}
    for one in traffic.moved:
        payloads[one.name] = payloads.get(one.name, 0) + one.payload_bytes
    rows = []
    for total in totals:
        if total.payload_bytes < WORTH_A_LINE * traffic.payload_bytes:
            continue
        beside = [one for one in traffic.moved if (one.kind, one.tensor) == (total.kind, total.tensor)]
        numbers = (unit.text(total.payload_bytes), unit.text(total.sent_bytes), str(total.count))
        alone, exposed = (
            sum(waits[one.name][i] * one.payload_bytes / payloads[one.name] for one in beside if one.name in waits)
            for i in (0, 1)
        )
        hidden = (f"{total.hidden_share:.0%}", _with_matmuls(beside))
        rows.append((total.kind, total.tensor, *numbers, *hidden, _ms(alone, timing), _ms(exposed, timing)))
    columns = (f"payload {unit.name}", f"sent {unit.name} a device", "times", "async", "with a matmul")
    head = ("collective", "of", *columns, "predicted ms alone", "ms exposed")
    all_alone, all_exposed = (_ms(sum(ms[i] for ms in waits.values()), timing) for i in (0, 1))
    sizes = (unit.text(traffic.payload_bytes), unit.text(traffic.sent_bytes))
    rows.append(("sum", "", *sizes, "", "", "", all_alone, all_exposed))
    return Table("", head, rows, head[2:])


def time_said(timing: Timing) -> str:
    shares = {"mfu": timing.mfu, "mfu_6nd": timing.mfu_6nd, "hfu": timing.hfu}
    known = "".join(f", {name} {share:.1%}" for name, share in shares.items() if share is not None)
    exposed = f" ({_ms(timing.exposed_step_ms, timing)} with nothing hidden)" if timing.collectives_alone_ms else ""
    return (
        f"predicted: {_ms(timing.step_ms, timing)} ms a step{exposed}, {timing.examples_per_s:.1f} examples/s{known}; "
        f"bound by {timing.bound_by}"
    )


def flops_said(timing: Timing) -> str:
    more = timing.compiled_flops / timing.counted_flops - 1
    return (
        f"{timing.compiled_flops / 1e12:.4g} TFLOP a step as compiled, {more:+.1%} beside what shapes say that the "
        "program multiplies, recomputation included"
    )


def time_tables(timing: Timing) -> Iterator[Table]:
    parts = [(part.name, _ms(part.ms, timing), f"{part.share:.1%}") for part in timing.parts if part.ms]
    parts.append(("a step", _ms(timing.step_ms, timing), ""))
    yield Table("", ("predicted time", "ms", "of the step"), parts, ("ms", "of the step"))
    rows = [
        (one.what, one.kind, _where(one), one.bound_by, str(one.times), _ms(one.ms, timing), f"{one.share:.1%}")
        for one in timing.top
    ]
    head = ("dearest, predicted", "kind", "of", "bound by", "times", "ms", "of the step")
    yield Table("", head, rows, head[4:])
    if timing.unknown:
        listed = ", ".join(f"{what} ({times} a step)" for what, times in timing.unknown)
        yield Table(f"\nno time is known of, beyond the bytes: {listed}")


def _ms(ms: float, timing: Timing | None) -> str:
    """Of a short step to the microsecond: else most of its parts would be 0."""
    return f"{ms:.3f}" if timing is not None and timing.step_ms < SHORT_STEP_MS else f"{ms:.1f}"


def _where(one: Spending) -> str:
    return ", ".join(filter(None, (one.category, one.part, one.in_pass)))


def ranked_table(plan: Plan, ranked: Sequence[Candidate]) -> Table:
    unit = unit_of(plan.memory.limit_bytes)
    rows = []
    for one in ranked:
        if one.plan is None:
            rows.append((one.change, "", "", "", "", "", f"not compiled: {one.why}"))
            continue
        needs, timing = unit.text(one.plan.memory.total_bytes), one.plan.timing
        if timing is None:
            rows.append((one.change, "", "", "", "", needs, "no: refused by the compiler"))
            continue
        share = "" if timing.mfu is None else f"{timing.mfu:.1%}"
        times = (f"{timing.examples_per_s:.1f}", _ms(timing.step_ms, timing), _ms(timing.exposed_step_ms, timing))
        rows.append((one.change, *times, share, needs, _yes(one.plan.fits)))
    head = ("change", "examples/s", "ms a step", "nothing hidden", "mfu", f"{unit.name} a device", "fits")
    fastest = f"the fastest is {ranked[0].change}: the plan above" if ranked[0].examples_per_s else "none of these fits"
    title = f"\n{fastest} (predicted; limit {in_words(plan.memory.limit_bytes)}; each compiled)"
    return Table(title, head, rows, head[1:6])


def _with_matmuls(moved: Sequence[Moved]) -> str:
    """Of the payload, what has a matrix product beside it."""
    payload = sum(one.payload_bytes for one in moved)
    beside = sum(one.payload_bytes for one in moved if one.is_async and one.matmuls_between)
    return f"{beside / payload:.0%}"


def tried_table(plan: Plan, tried: Sequence[Tried]) -> Table:
    unit = unit_of(plan.memory.limit_bytes)
    largest = max((one.batch_size for one in tried if one.fits), default=None)
    title = "no batch fits" if largest is None else f"the largest batch that fits is {largest}: the plan above"
    rows = []
    for one in sorted(tried, key=lambda one: one.batch_size):
        is_refused = not one.fits and one.bytes <= plan.memory.limit_bytes  # by the compiler: its need is not known
        rows.append((str(one.batch_size), "refused" if is_refused else unit.text(one.bytes), _yes(one.fits)))
    head = ("train.batch_size", f"{unit.name} a device", "fits")
    return Table(f"\n{title} (limit {in_words(plan.memory.limit_bytes)}; each compiled)", head, rows, head[:2])


def alternatives_table(plan: Plan, alternatives: Sequence[Alternative]) -> Table:
    unit = unit_of(plan.memory.limit_bytes)
    rows = []
    for one in alternatives:
        found = _yes(one.fits) if one.plan is not None else "no: not even what is placed"
        rows.append((one.change, unit.text(one.least_bytes), found, one.about))
    fitting = [one.change for one in alternatives if one.fits]
    title = f"it fits with {fitting[0]}" if fitting else "none of these changes makes it fit"
    head = ("change", f"{unit.name} a device", "fits", "what it costs")
    return Table(f"\n{title} (limit {in_words(plan.memory.limit_bytes)}; each compiled)", head, rows, head[1:2])


def _yes(fits: bool) -> str:
    return "yes" if fits else "no"
