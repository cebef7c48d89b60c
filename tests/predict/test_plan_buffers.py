"""What XLA says of its buffers, read from two texts written by hand in its way, and the moment when most are alive."""

from pathlib import Path

from sharder.measure.hlo import Shape
from sharder.predict.buffers import at_peak, covered_bytes, read_buffers

ASSIGNMENT = """BufferAssignment:
allocation 0: size 64, parameter 0, shape |f32[16]| at ShapeIndex {}, maybe-live-out:
 value: <1 param.1 @0> (size=64,offset=0): f32[16]{0}
allocation 1: size 352, preallocated-temp:
 value: <2 fusion.1 @0> (size=128,offset=0): f32[32]{0}
 value: <3 while.1{2} (phi) @0> (size=64,offset=128): bf16[4,8]{1,0}
 value: <4 gemm.1{} @0> (size=16,offset=192): (f32[2,4]{1,0}, s8[64]{0})
 value: <5 gemm.1{0} @0> (size=32,offset=208): f32[2,4]{1,0}
 value: <6 gemm.1{1} @0> (size=64,offset=256): s8[64]{0}
 value: <7 start.1{1,0} @0> (size=128,offset=0): f32[32]{0}
 value: <8 never.1 @0> (size=8,offset=0): f32[2]{0}
allocation 2: size 4, thread-local:
 value: <9 add.1 @0> (size=4,offset=0): f32[]
"""
RANGES = """HloLiveRange (max 10):
  InstructionSequence:
    0:param.1
    1:fusion.1
  BufferLiveRange:
    param.1{}:0-9
    fusion.1{}:1-4
    while.1{2}:2-8
    gemm.1{}:5-6
    gemm.1{0}:5-6
    gemm.1{1}:5-5
    start.1{1,0}:6-9
    add.1{}:3-3
  Live ranges at 4 (peak):
    fusion.1{}: 128 bytes (cumulative: 128 bytes)
"""


def dumped(folder: Path, assignment: str = ASSIGNMENT) -> Path:
    (folder / "module_0001.jit_step.gpu_after_optimizations-buffer-assignment.txt").write_text(assignment)
    (folder / "module_0001.jit_step.gpu_after_optimizations-buffer-assignment-values.txt").write_text("other")
    (folder / "module_0001.jit_step.gpu_after_optimizations-live-range.txt").write_text(RANGES)
    return folder


def test_the_block_of_temporaries_is_read_value_by_value(tmp_path: Path) -> None:
    found = read_buffers(dumped(tmp_path))
    assert found is not None
    assert [(one.instruction, one.index) for one in found] == [
        ("fusion.1", ""),
        ("while.1", "2"),
        ("gemm.1", ""),
        ("gemm.1", "0"),
        ("gemm.1", "1"),
        ("start.1", "1,0"),
    ]  # neither parameters nor what lives in a thread, nor what is never alive
    assert (found[1].shapes, found[1].offset, found[1].bytes) == ((Shape("bf16", (4, 8)),), 128, 64)
    assert (found[1].first, found[1].last) == (2, 8)
    assert len(found[2].shapes) == 2  # a tuple's table of addresses


def test_the_peak_is_where_most_bytes_are_taken_and_not_where_xla_stopped_looking(tmp_path: Path) -> None:
    found = read_buffers(dumped(tmp_path))
    assert found is not None
    peak = at_peak(found)  # step 6: while 64, gemm 16 + 32, start 128; at step 5 the workspace, but nothing of 128
    assert [(one.instruction, one.index) for one in peak] == [
        ("while.1", "2"),
        ("gemm.1", ""),
        ("gemm.1", "0"),
        ("start.1", "1,0"),
    ]
    assert covered_bytes(peak) == 64 + 16 + 32 + 128


def test_values_on_the_same_bytes_count_once(tmp_path: Path) -> None:
    found = read_buffers(dumped(tmp_path))
    assert found is not None
    assert covered_bytes([found[0], found[5]]) == 128  # the same bytes
    assert covered_bytes([found[0], found[4]]) == 128 + 64  # a gap between them


def test_a_compiler_that_writes_no_such_texts_tells_nothing(tmp_path: Path) -> None:
    assert read_buffers(tmp_path) is None
