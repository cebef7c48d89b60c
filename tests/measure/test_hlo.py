"""What is read from the text of a compiled program."""

import pytest

from sharder.measure.costs import Costs
from sharder.measure.hlo import Instruction, Loop, Shape, parse
from sharder.measure.replica_groups import replica_groups

# A loop over 18 layers, each with a loop over 4 heads in it. The shapes and attributes are made up to have one of each.
NESTED = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8,16]{1,0})->f32[]}, num_partitions=4

FileNames
1 "/home/someone/step.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}


%matmul_inside (parameter_0: bf16[8,16], parameter_1: bf16[16,16]) -> bf16[8,16] {
  %parameter_0 = bf16[8,16]{1,0} parameter(0)
  %parameter_1 = bf16[16,16]{1,0} parameter(1)
  ROOT %dot.1 = bf16[8,16]{1,0} dot(%parameter_0, %parameter_1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%head_condition (head_param.1: (s32[], bf16[8,16])) -> pred[] {
  %head_param.1 = (s32[], bf16[8,16]{1,0}) parameter(0)
  ROOT %always.1 = pred[] constant(true)
}

%head_body (head_param: (s32[], bf16[8,16])) -> (s32[], bf16[8,16]) {
  %head_param = (s32[], bf16[8,16]{1,0}) parameter(0)
  %x.1 = bf16[8,16]{1,0} get-tuple-element(%head_param), index=1
  %i.1 = s32[] get-tuple-element(%head_param), index=0
  %w = bf16[16,16]{1,0} custom-call(), custom_call_target="a_weight(1)", backend_config="{not=\\"json\\", calls=%none"
  %gemm_fusion = bf16[8,16]{1,0} fusion(%x.1, %w), kind=kCustom, calls=%matmul_inside, control-predecessors={%i.1}
  ROOT %tuple.1 = (s32[], bf16[8,16]{1,0}) tuple(%i.1, %gemm_fusion)
}

%layer_condition (layer_param.1: (s32[], bf16[8,16])) -> pred[] {
  %layer_param.1 = (s32[], bf16[8,16]{1,0}) parameter(0)
  ROOT %always.2 = pred[] constant(true)
}

%layer_body (layer_param: (s32[], bf16[8,16])) -> (s32[], bf16[8,16]) {
  %layer_param = (s32[], bf16[8,16]{1,0}) parameter(0)
  ROOT %heads = (s32[], bf16[8,16]{1,0}) while(%layer_param), condition=%head_condition, body=%head_body, backend_config={"dynamic_variables":[],"known_trip_count":{"n":"4"}}
}

ENTRY %main.9_spmd (param: f32[8,16]) -> f32[] {
  %param = f32[8,16]{1,0:T(8,128)} parameter(0), sharding={devices=[4,1]<=[4]}, metadata={op_name="x"}
  %zero = s32[] constant(0)
  %narrow = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} convert(f32[8,16]{1,0:T(8,128)} %param), metadata={op_name="jit(step)/convert, \\"x\\"" stack_frame_id=1}
  %start = (s32[], bf16[8,16]{1,0:T(8,128)}) tuple(%zero, /*index=1*/%narrow)
  %layers = (s32[], bf16[8,16]{1,0:T(8,128)}) while(%start), condition=%layer_condition, body=%layer_body, backend_config={"known_trip_count":{"n":"18"}}
  %y = bf16[8,16]{1,0} get-tuple-element(%layers), index=1
  %wide = f32[8,16]{1,0} convert(%y)
  %total = f32[] reduce(%wide, %zero), dimensions={0,1}, to_apply=%add
  ROOT %all-reduce.3 = f32[] all-reduce(%total), channel_id=7, replica_groups={{0,1},{2,3}}, to_apply=%add
}

"""  # noqa: E501


def line(text: str) -> Instruction:
    """The one instruction of a module with nothing else in it."""
    return parse(f"HloModule m\n\nENTRY %e () -> f32[] {{\n  {text}\n}}\n").entry.instructions[0]


def test_a_module_is_its_computations_and_their_instructions() -> None:
    module = parse(NESTED)
    assert module.name == "jit_step"
    assert module.device_count == 4
    assert module.entry.name == "main.9_spmd"
    assert list(module.computations) == [
        "matmul_inside",
        "add",
        "head_condition",
        "head_body",
        "layer_condition",
        "layer_body",
        "main.9_spmd",
    ]
    opcodes = [instruction.opcode for instruction in module.entry.instructions[:5]]
    assert opcodes == ["parameter", "constant", "convert", "tuple", "while"]
    assert [instruction.name for instruction in module.entry.instructions if instruction.is_root] == ["all-reduce.3"]


def test_an_instruction_has_a_result_operands_and_attributes() -> None:
    entry = parse(NESTED).entry.by_name
    assert entry["narrow"].shapes == (Shape("bf16", (8, 16)),)
    assert entry["narrow"].operands == ("param",)
    assert entry["narrow"].op_name == 'jit(step)/convert, \\"x\\"'
    assert entry["start"].shapes == (Shape("s32", ()), Shape("bf16", (8, 16)))
    assert entry["start"].operands == ("zero", "narrow")
    assert entry["zero"].operands == ()
    assert entry["layers"].called == {"condition": ("layer_condition",), "body": ("layer_body",)}
    assert entry["layers"].trip_count == 18
    assert entry["total"].dimensions == (0, 1)
    assert entry["total"].called == {"to_apply": ("add",)}
    assert entry["total"].trip_count is None
    assert entry["total"].op_name == ""
    assert entry["total"].channel_id is None
    assert entry["all-reduce.3"].channel_id == 7
    assert entry["all-reduce.3"].replica_groups == ((0, 1), (2, 3))


def test_brackets_and_commas_in_quotes_are_not_attributes() -> None:
    weight = parse(NESTED).computations["head_body"].by_name["w"]
    assert list(weight.attributes) == ["custom_call_target", "backend_config"]
    assert weight.attributes["custom_call_target"] == '"a_weight(1)"'
    assert weight.called == {}


def test_attributes_with_a_hyphen_end_the_one_before() -> None:
    gemm = parse(NESTED).computations["head_body"].by_name["gemm_fusion"]
    assert gemm.called == {"calls": ("matmul_inside",)}
    assert gemm.attributes["control-predecessors"] == "{%i.1}"


def test_nested_tuples_are_read_in_a_row() -> None:
    start = line("%s = ((bf16[2]{0}, /*index=1*/f8e4m3fn[3,4]{1,0}), (pred[], token[]), u32[<=5]) copy-start(%x)")
    assert [(shape.dtype, shape.dims) for shape in start.shapes] == [
        ("bf16", (2,)),
        ("f8e4m3fn", (3, 4)),
        ("pred", ()),
        ("token", ()),
        ("u32", (5,)),
    ]
    assert [shape.bytes for shape in start.shapes] == [4, 12, 1, 0, 20]


@pytest.mark.parametrize(("dtype", "bytes_of_six"), [("f32", 24), ("s64", 48), ("c64", 48), ("s4", 3), ("f8e5m2", 6)])
def test_bytes_of_a_dtype(dtype: str, bytes_of_six: int) -> None:
    assert Shape(dtype, (2, 3)).bytes == bytes_of_six


def test_times_are_the_product_of_the_trip_counts_around() -> None:
    """A condition is asked once more than the body runs; what a reduction applies is not run as a sequence."""
    assert parse(NESTED).times == {
        "main.9_spmd": 1,
        "layer_condition": 19,
        "layer_body": 18,
        "head_condition": 18 * 5,
        "head_body": 18 * 4,
        "matmul_inside": 18 * 4,
    }


def test_a_computation_called_twice_is_visited_twice() -> None:
    module = parse("""HloModule m
%square (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %m = f32[4]{0} multiply(%p, %p)
}
ENTRY %e (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0)
  %once = f32[4]{0} call(%q), to_apply=%square
  %either = f32[4]{0} conditional(%c, %once, %once), branch_computations={%square, %square}
  ROOT %r = f32[4]{0} fusion(%either), kind=kLoop, calls=%square
}
""")
    assert module.times == {"e": 1, "square": 4}
    callers = [visit.caller.name for visit in module.visits() if visit.caller is not None]
    assert callers == ["once", "either", "either", "r"]


def test_an_instruction_is_found_wherever_it_stands() -> None:
    module = parse(NESTED)
    found = module.find("gemm_fusion")
    assert found is module.computations["head_body"].by_name["gemm_fusion"]
    assert module.home["gemm_fusion"].name == "head_body"
    assert module.find("nowhere") is None
    assert found is not None
    assert found.sequences == {"calls": ("matmul_inside",)}
    assert module.entry.by_name["total"].sequences == {}  # a reduction applies it to elements


def test_a_loop_of_unknown_length_counts_once() -> None:
    text = NESTED.replace(', backend_config={"known_trip_count":{"n":"18"}}', "")
    module = parse(text)
    assert module.times["head_body"] == 4
    (visit,) = [visit for visit in module.visits() if visit.computation.name == "head_body"]
    assert visit.loops == (Loop("layer_body", None), Loop("head_body", 4))


COUNTING = """HloModule test, is_scheduled=true

%condition (c: (s32[], f32[4])) -> pred[] {{
  %end = s32[] constant({end})
  %c = (s32[], f32[4]{{0}}) parameter(0)
  %i.1 = s32[] get-tuple-element(%c), index=0
  ROOT %less = pred[] compare(%i.1, %end), direction={direction}
}}

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %b = (s32[], f32[4]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = f32[4]{{0}} get-tuple-element(%b), index=1
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  ROOT %round = (s32[], f32[4]{{0}}) tuple(%next, %x)
}}

ENTRY %main (x0: f32[4]) -> (s32[], f32[4]) {{
  %x0 = f32[4]{{0}} parameter(0)
  %zero = s32[] constant({first})
  %copied = s32[] copy(%zero)
  %start = (s32[], f32[4]{{0}}) tuple(%copied, %x0)
  ROOT %loop = (s32[], f32[4]{{0}}) while(%start), condition=%condition, body=%body{said}
}}
"""
AS_SCANS_DO = {"first": 0, "end": 18, "step": 1, "direction": "LT", "said": ""}


@pytest.mark.parametrize(
    ("changed", "turns"),
    [
        ({}, 18),
        ({"first": 2}, 16),
        ({"first": 20}, 0),
        ({"step": 2}, None),
        ({"direction": "GT"}, None),
        ({"said": ', backend_config={"known_trip_count":{"n":"3"}}'}, 3),
    ],
)
def test_a_loop_that_xla_does_not_count_is_counted_where_it_counts_up_by_one(
    changed: dict[str, object], turns: int | None
) -> None:
    module = parse(COUNTING.format(**AS_SCANS_DO | changed))
    assert module.entry.by_name["loop"].trip_count == turns
    assert module.times["body"] == (1 if turns is None else turns)


def test_a_fusion_that_runs_beside_others_is_read_as_the_fusion_that_it_starts() -> None:
    module = parse("""HloModule test, is_scheduled=true

%update (p: bf16[18,16], q: bf16[16], i: s32[]) -> bf16[18,16] {
  %p = bf16[18,16]{1,0} parameter(0)
  %q = bf16[16]{0} parameter(1)
  %i = s32[] parameter(2)
  %row = bf16[1,16]{1,0} bitcast(%q)
  %zero = s32[] constant(0)
  ROOT %new = bf16[18,16]{1,0} dynamic-update-slice(%p, %row, %i, %zero)
}

ENTRY %main (a: bf16[18,16], b: bf16[16], n: s32[]) -> bf16[18,16] {
  %a = bf16[18,16]{1,0} parameter(0)
  %b = bf16[16]{0} parameter(1)
  %n = s32[] parameter(2)
  %start = ((bf16[18,16]{1,0}, bf16[16]{0}, s32[]), bf16[18,16]{1,0}, u32[]) fusion-start(%a, %b, %n), kind=kLoop, calls=%update
  ROOT %done = bf16[18,16]{1,0} fusion-done(%start)
}
""")  # noqa: E501
    start = module.entry.by_name["start"]
    assert (start.opcode, start.shapes) == ("fusion", (Shape("bf16", (18, 16)),))
    assert start.sequences == {"calls": ("update",)}
    assert Costs(module).of("start").bytes == 2 * 16 + 2 * 16 + 4  # the row read and written, where it goes: no stack
    assert Costs(module).of("done").bytes == 0


def test_a_matmul_is_found_inside_fusions_and_loops() -> None:
    module = parse(NESTED)
    assert module.is_matmul(module.computations["head_body"].by_name["gemm_fusion"])
    assert module.is_matmul(module.entry.by_name["layers"])
    assert not module.is_matmul(module.computations["head_body"].by_name["w"])
    assert not module.is_matmul(module.entry.by_name["narrow"])
    assert module.is_matmul(line('%g = (f32[4,4]{1,0}, s8[64]{0}) custom-call(%x), custom_call_target="__cublas$gemm"'))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ()),
        ("{{0,1,2,3}}", ((0, 1, 2, 3),)),
        ("{{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['batch'=2,'fsdp'=4] {'fsdp'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['batch'=2,'fsdp'=4] {'batch'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['batch'=1,'fsdp'=4] {'batch','fsdp'}", ((0, 1, 2, 3),)),
        ("mesh['x'=8] {'x':(2)4}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x'=8] {'x':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'c'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=2], device_ids=(0,3,1,2) {'b'}", ((0, 3), (1, 2))),
    ],
)
def test_groups_of_devices_in_each_of_the_forms_xla_prints(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert replica_groups(text) == groups
    gather = line(f"%g = f32[8]{{0}} all-gather(%x), channel_id=1, replica_groups={text}, dimensions={{0}}")
    assert gather.replica_groups == groups
    assert gather.dimensions == (0,)


@pytest.mark.parametrize("text", ["mesh of nothing", "mesh['x'=8]", "<=[8]"])
def test_another_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="of a form that is not known"):
        replica_groups(text)


def test_what_cannot_be_read_is_an_error_with_its_line() -> None:
    with pytest.raises(ValueError, match="line 4: not an instruction:   %x is missing"):
        line("%x is missing")
    with pytest.raises(ValueError, match="line 4: no opcode"):
        line("%x = f32[4]{0}")
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("HloModule m\n")
    with pytest.raises(ValueError, match="the size of dtype odd is not known"):
        _ = Shape("odd", (2,)).bytes
