"""`python -m sharder.plan`: what it refuses, in one line and at once, and what the page says of a plan."""

import dataclasses
import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from sharder import compose
from sharder import plan as command
from sharder.config import Config
from sharder.errors import UserError
from sharder.parallel.environment import planning_environment
from sharder.parallel.hardware import check_hardware
from sharder.predict import available, page, planning
from sharder.predict.alternatives import Alternative
from sharder.predict.batch_search import Tried
from sharder.predict.communication import Total
from sharder.predict.fastest import Candidate
from sharder.predict.inputs import read_inputs
from sharder.predict.memory import Memory, Part, Saving
from sharder.predict.plan import Choices, Hardware, Plan
from sharder.predict.target import GPUS
from sharder.predict.timing import Assumptions, Share, Spending, Timing, Transfer
from sharder.predict.traffic import Moved, Traffic
from sharder.table import print_table

CONF = Path(compose.__file__).parent / "conf" / "hardware"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    """The one line, from exit code 2; no folder is left."""
    assert compose.main("plan", command.run_plan, [*typed, "run.id=x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert not Path("outputs/plan/x").exists()
    return line


def test_the_machine_at_hand_is_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "hardware=auto")
    assert "hardware: found auto, allowed for plan: h100, h200, a100, tpu_v5e" in line


def test_without_the_compiler_for_gpus_one_line_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available, "PLUGINS", ("jax_cuda_plugin_that_nobody_has",))
    assert "compiling for a100 needs jax's CUDA plugin; pip install 'sharder[plan]'" in refused(capsys, "hardware=a100")


def test_without_libtpu_one_line_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available, "has_any", lambda modules: False)
    assert "needs libtpu; pip install 'sharder[tpu]'" in refused(capsys, "hardware=tpu_v5e")


def test_a_tpu_slice_has_so_many_devices_and_no_other_number(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "hardware=tpu_v5e", "mesh=dp2")
    assert "hardware.count: found 2, allowed with hardware=tpu_v5e: 1, 4, 8, 16" in line


def test_as_many_devices_as_the_mesh_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hardware.count: found 8, allowed" in refused(capsys, "mesh=fsdp4", "hardware.count=8")


def test_what_a_prediction_stands_on_is_asked_for_before_anything_is_compiled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for key in ("hbm_bytes_per_s", "link_bytes_per_s", "link_latency_s"):
        assert f"hardware.{key}: found null, allowed for plan" in refused(capsys, f"hardware.{key}=null")
    assert f"hardware.hbm_bytes: found {2**63}, allowed: at most" in refused(capsys, f"hardware.hbm_bytes={2**63}")


@pytest.mark.parametrize("typed", ["hardware.device_kind=mine", "hardware.hbm_bytes=1"])
def test_hardware_that_makes_no_sense_is_refused_before_anything_is_compiled(
    typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "make_plan", lambda *_: pytest.fail("compiled"))
    (config,) = compose.composed("plan", [typed])
    with pytest.raises(UserError, match=typed.partition("=")[0]):
        planning.planned_for(config, ("base_0_rgb",))


def test_a_search_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert "plan.search: found 'best', allowed: one of none, batch, fastest" in refused(capsys, "plan.search=best")


def test_a_plan_takes_what_train_takes() -> None:
    for typed in ((), ("experiment=convergence",), ("model=pi0", "mesh=fsdp4", "launch=local", "profile=off")):
        (train,), (plan,) = compose.composed("train", typed), compose.composed("plan", typed)
        assert plan.hardware.kind == "h100"
        plan.run, plan.hardware = train.run, train.hardware
        assert plan == train


def test_xla_is_told_of_the_memory_that_the_config_says() -> None:
    """Both are numbers of one device: of XLA's page about it, and of conf/hardware."""
    for name, gpu in GPUS.items():
        told = yaml.safe_load((CONF / f"{name}.yaml").read_text())
        assert told["hbm_bytes"] == gpu.memory_bytes
        assert float(told["hbm_bytes_per_s"]) == gpu.memory_bytes_per_s
        assert told["device_kind"] == gpu.description


def test_every_target_has_a_peak_for_its_dtypes() -> None:
    from sharder.measure.peaks import known_peak

    for name in available.TARGETS:
        kind = yaml.safe_load((CONF / f"{name}.yaml").read_text())["device_kind"]
        assert known_peak(kind, "bfloat16") is not None and known_peak(kind, "float32") is not None


def test_train_refuses_to_run_on_other_hardware_than_it_was_told() -> None:
    (config,) = compose.composed("train", ["hardware=h100"])
    with pytest.raises(
        UserError, match=r"found h100, which is 'NVIDIA H100 80GB HBM3', but the devices here are 'cpu'"
    ):
        check_hardware(config.hardware)
    check_hardware(Config().hardware)


def test_planning_needs_one_cpu_device_whatever_the_user_has_set_for_running() -> None:
    users = {"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--xla_mine=1", "NPROC": "3"}
    environment = planning_environment(users)
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["XLA_FLAGS"] == "--xla_force_host_platform_device_count=1 --xla_mine=1"
    assert environment["NPROC"] == "3"


def test_a_recording_that_is_not_here_is_planned_with_every_camera_and_that_is_said() -> None:
    elsewhere = ("model=pi0", "data=lerobot", "data.root=/nowhere")
    (config,) = compose.composed("plan", elsewhere)
    inputs = read_inputs(config)
    assert inputs.cameras == ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    assert inputs.said is not None and inputs.said.startswith("data.root=/nowhere is not here")
    (config,) = compose.composed("plan", [*elsewhere, "data.cameras.base_0_rgb=observation.images.top"])
    assert read_inputs(config).cameras == ("base_0_rgb",)
    (config,) = compose.composed(
        "plan", ["data=lerobot", "data.root=/nowhere"]
    )  # pi0_nano leaves its sizes to the data
    with pytest.raises(UserError, match="action_dim: found 0, which is for the data to say"):
        read_inputs(config)


def moved(name: str, tensor: str, payload_bytes: int) -> Moved:
    sent, between = 0.75 * payload_bytes, {"instructions_between": 4, "matmuls_between": 1}
    dims = {"dims": (2, 3), "group_size": 4, "between_hosts": False, "times": 18}
    what = {"kind": "all-gather", "tensor": tensor, "what": tensor, "scope": "", "dtype": "bf16"}
    return Moved(name=name, payload_bytes=payload_bytes, sent_bytes=sent, is_async=True, **what, **dims, **between)


PLAN = Plan(
    Choices("pi0", (1, 4), "auto", "xla", "full", 16, 2, "float32", "bfloat16", 0.99, ("base_0_rgb",)),
    Hardware("h100", "NVIDIA H100 80GB HBM3", 4, 1, 989.4e12, "NVIDIA"),
    Memory(
        (Part("weights", 3 * 10**9, "placement"), Part("gradients", 10**9, "compiled")),
        4 * 10**9,
        8 * 10**9,
        0.75,
        "the allocator",
        ("gemma/odd (2.0 MB)",),
    ),
    Saving(10**9, 4 * 10**9, 3),
    Traffic(
        (
            moved("gather.1", "layer weights", 6 * 10**8),
            moved("gather.1", "other weights", 2 * 10**8),
            moved("gather.2", "layer weights", 2 * 10**8),
        ),
        10**9,
        0.75e9,
        10**9,
        "1.000 GB of payload a step",
    ),
    (
        Total("all-gather", "layer weights", 8 * 10**8, 0.6e9, 19, 1.0),
        Total("all-gather", "other weights", 2 * 10**8, 0.15e9, 18, 1.0),
    ),
    Timing(
        label="predicted",
        model="a roofline",
        accuracy="mean error 4.0%",
        assumptions=Assumptions(),
        device_kind="NVIDIA H100 80GB HBM3",
        devices=4,
        step_ms=100.0,
        exposed_step_ms=130.0,
        parts=(Share("arithmetic", 60.0, 0.6), Share("memory", 40.0, 0.4), Share("launch gaps", 0.0, 0.0)),
        bound_by="arithmetic",
        examples_per_s=160.0,
        mfu=0.25,
        mfu_6nd=0.35,
        hfu=0.3,
        compiled_flops=10**12,
        counted_flops=10**12,
        kernels=10,
        moved_bytes=1e9,
        collectives_alone_ms=30.0,
        collectives_exposed_ms=0.0,
        transfers=(Transfer("gather.1", 18, 20.0, 6.0), Transfer("gather.2", 1, 10.0, 0.0)),
        top=(Spending("MLP", "language", "forward", "custom-call.7", "product", "arithmetic", 18, 8.0, 0.08),),
        places=(),
        unknown=(("custom-call their_kernel", 18),),
    ),
    "0.0",
)
TOO_LARGE = dataclasses.replace(PLAN, memory=dataclasses.replace(PLAN.memory, total_bytes=7 * 10**9))


def printed(
    plan: Plan,
    alternatives: tuple[Alternative, ...] = (),
    tried: tuple[Tried, ...] = (),
    ranked: tuple[Candidate, ...] = (),
) -> str:
    text = io.StringIO()
    for table in page.tables(plan, alternatives, tried, ranked):
        print_table(table, Console(file=text, width=80))
    return text.getvalue()


def test_the_page_says_whether_it_fits_and_in_what() -> None:
    text = printed(PLAN)
    assert "fits: 4.000 GB of 6.000 GB a device, 75% of 8.000 GB (the allocator)" in text
    assert "held whole  by every device: gemma/odd (2.0 MB)" in text
    assert "1.000 GB of a host's memory, 4.000 GB on disk; 3 at once at most, 12.000 GB" in text
    assert ["weights", "3.000", "50.0%", "placement"] in [line.split() for line in text.splitlines()]


def test_the_page_says_by_how_much_it_does_not_fit_and_what_would() -> None:
    text = printed(TOO_LARGE)
    assert "does not fit: 7.000 GB, 1.000 GB more than 6.000 GB" in text
    assert "it would with XLA_CLIENT_MEM_FRACTION=0.88" in text
    old = dataclasses.replace(TOO_LARGE.memory, share_source="XLA_PYTHON_CLIENT_MEM_FRACTION, which ...")
    text = printed(dataclasses.replace(TOO_LARGE, memory=old))
    assert "it would with XLA_PYTHON_CLIENT_MEM_FRACTION=0.88" in text  # the one that is set: jax takes no two
    alternatives = (
        Alternative("remat=full", "a", TOO_LARGE, 7 * 10**9),
        Alternative("mesh=fsdp8", "b", PLAN, 4 * 10**9),
    )
    assert "it fits with mesh=fsdp8" in printed(TOO_LARGE, alternatives)
    assert "none of these changes makes it fit" in printed(TOO_LARGE, alternatives[:1])


def test_the_page_says_what_a_step_is_predicted_to_take_and_by_what_model() -> None:
    text = printed(PLAN)
    assert "time        predicted: 100.0 ms a step (130.0 with nothing hidden), 160.0 examples/s, mfu 25.0%" in text
    assert "mfu_6nd 35.0%, hfu 30.0%; bound by arithmetic" in text
    assert "known by    a roofline: mean error 4.0%" in text
    rows = [line.split("  ") for line in text.splitlines()]
    assert ["arithmetic", "60.0", "60.0%"] in [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert "launch gaps" not in text  # what takes nothing is no row
    assert "custom-call.7" in text and "MLP, language, forward" in text
    assert "no time is known of, beyond the bytes: custom-call their_kernel (18 a step)" in text


def test_the_parts_of_a_step_of_less_than_ten_milliseconds_are_told_to_the_microsecond() -> None:
    assert PLAN.timing is not None
    short = dataclasses.replace(PLAN.timing, step_ms=0.7, parts=(Share("arithmetic", 0.042, 0.06),))
    text = printed(dataclasses.replace(PLAN, timing=short))
    assert "predicted: 0.700 ms a step" in text
    assert ["arithmetic", "0.042", "6.0%"] in [line.split() for line in text.splitlines()]


def test_the_page_says_how_long_each_kind_of_collective_takes_and_is_waited_for() -> None:
    """The gather of 20 ms moves layer weights for three quarters of its bytes."""
    rows = [" ".join(line.split()) for line in printed(PLAN).splitlines() if line.startswith(("all-gather", "sum"))]
    assert rows == [
        "all-gather layer weights 0.800 0.600 19 100% 100% 25.0 4.5",
        "all-gather other weights 0.200 0.150 18 100% 100% 5.0 1.5",
        "sum 1.000 0.750 30.0 6.0",
    ]


def test_the_page_of_the_fastest_is_ordered_by_examples_per_second() -> None:
    assert PLAN.timing is not None
    slower = dataclasses.replace(
        PLAN, timing=dataclasses.replace(PLAN.timing, step_ms=200.0, exposed_step_ms=200.0, examples_per_s=80.0)
    )
    ranked = (
        Candidate({"remat.name": "dots"}, PLAN),
        Candidate({"remat.name": "full"}, slower),
        Candidate({"remat.name": "none"}, None, "keeps more than what did not fit"),
    )
    text = printed(PLAN, ranked=ranked)
    assert "the fastest is remat=dots: the plan above (predicted" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("remat=")]
    assert rows[0] == ["remat=dots", "160.0", "100.0", "130.0", "25.0%", "4.000", "yes"]
    assert rows[1][:4] == ["remat=full", "80.0", "200.0", "200.0"]
    assert " ".join(rows[2]) == "remat=none not compiled: keeps more than what did not fit"


def test_the_page_of_a_search_is_ordered_by_batch() -> None:
    tried = (Tried(16, 4 * 10**9, True), Tried(32, 8 * 10**9, False), Tried(24, 6 * 10**9, True))
    text = printed(PLAN, tried=tried)
    assert "the largest batch that fits is 24" in text
    assert text.index("\n              16") < text.index("\n              24") < text.index("\n              32")
