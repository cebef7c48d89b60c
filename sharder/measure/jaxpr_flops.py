"""FLOPs of a traced program, counted by walking its jaxpr: a second opinion, independent of flops.py.

It knows no model, only primitives: dot_general and convolutions multiply; a loop's body counts as often as it runs, a
shard_map's once for every device. Which pass a product belongs to follows from what its operands depend on. So the
gradient is traced as a function of three kinds of inputs, weights, data and the loss's cotangent, and each value
carries the kinds that it depends on:

    depends on the cotangent, the other operand on no data     the gradient of an activation: cotangent x weight
    depends on the cotangent, the other operand on data        the gradient of a weight: cotangent x activation; inside
                                                               the scope "attention", where both operands of the product
                                                               were activations, that of an activation
    does not, inside what jax.checkpoint runs backward, or     recomputation
    inside the scope "recomputation"
    does not, elsewhere                                        forward

What is in the jaxpr counts. JAX traces no gradient that nothing depends on, and drops from a checkpointed body what
its backward pass does not read. But of a loop it keeps whatever some turn needs, in all turns: so the last layer's work
that nobody reads is there, as it is in the compiled loop.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, jaxprs_in_params

from sharder.measure.categories import RECOMPUTATION
from sharder.measure.products import Pass

CALLS = {"jit", "closed_call", "eval_jaxpr", "core_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call"}
# Kernels that multiply without saying so in the jaxpr.
OPAQUE = re.compile(r"ffi_call|ragged_dot|dot_product_attention|scaled_matmul|cudnn_fusion|tpu_custom_call")
WRITES = {"swap", "addupdate"}
ATTENTION = "attention"  # the scope whose products have no weight for an operand


class Depends(enum.Flag):
    NOTHING = 0
    WEIGHTS = enum.auto()
    DATA = enum.auto()
    COTANGENT = enum.auto()


@dataclass(frozen=True)
class Product:
    """One dot_general or convolution of the program."""

    scopes: tuple[str, ...]  # named scopes around it, outermost first
    in_pass: Pass
    operands: tuple[tuple[int, ...], tuple[int, ...]]  # shapes, on one device where the program is split by hand
    times: int  # in one run of the program, over all devices
    flops: int  # of all these


def gradient_products(
    loss_of: Callable[[Any, Any, Any], jax.Array], trainable: Any, frozen: Any, data: Any
) -> list[Product]:
    """Of a float32 loss and its gradient with respect to `trainable`, traced from arrays or only shapes and dtypes."""

    def run(trainable: Any, frozen: Any, data: Any, cotangent: jax.Array) -> Any:
        loss, backward = jax.vjp(lambda weights: loss_of(weights, frozen, data), trainable)
        return loss, backward(cotangent)

    cotangent = jax.ShapeDtypeStruct((), jnp.float32)
    arguments = {Depends.WEIGHTS: (trainable, frozen), Depends.DATA: data, Depends.COTANGENT: cotangent}
    traced = jax.make_jaxpr(run)(trainable, frozen, data, cotangent)
    return _walk(traced, [kind for kind, leaves in arguments.items() for _ in jax.tree.leaves(leaves)])


def program_flops(program: Callable[..., Any], *arguments: Any) -> int:
    """Of all passes of any program, over all devices."""
    traced = jax.make_jaxpr(program)(*arguments)
    return sum(product.flops for product in _walk(traced, [Depends.DATA for _ in jax.tree.leaves(arguments)]))


def _walk(traced: Any, inputs: list[Depends]) -> list[Product]:
    products: list[Product] = []
    _Place(products).run(traced, inputs)
    return products


@dataclass(frozen=True)
class _Place:
    """Where in the program: how often it runs, in which scopes, and whether inside what was checkpointed."""

    products: list[Product]
    times: int = 1
    scopes: tuple[str, ...] = ()
    is_backward_checkpoint: bool = False

    def run(self, jaxpr: Any, inputs: Sequence[Depends]) -> list[Depends]:
        """Appends to `products`; what the outputs depend on."""
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # up to jax 0.11 a closed jaxpr has the open one inside
        if len(inputs) != len(jaxpr.invars):
            raise ValueError(f"jaxpr: {len(inputs)} inputs for a body that takes {len(jaxpr.invars)}")
        depends = dict(zip(jaxpr.invars, inputs, strict=True))

        def of(atom: Any) -> Depends:
            return Depends.NOTHING if isinstance(atom, Literal) else depends.get(atom, Depends.NOTHING)

        for equation in jaxpr.eqns:
            outputs = self.equation(equation, [of(atom) for atom in equation.invars])
            depends.update(zip(equation.outvars, outputs, strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Depends]) -> list[Depends]:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            self.add(equation, inputs, _dot_flops(equation))
        elif name == "conv_general_dilated":
            self.add(equation, inputs, _convolution_flops(equation))
        elif OPAQUE.match(name):
            raise ValueError(
                f"jaxpr: {name} is a kernel whose products a jaxpr does not show; count it with attn=naive"
            )
        bodies = list(jaxprs_in_params(parameters))
        if name == "scan":
            return self.inside(equation, times=parameters["length"]).loop(equation, bodies[0], inputs)
        if name == "shard_map":
            devices = math.prod(parameters["mesh"].shape[axis] for axis in parameters["newly_manual_axes"])
            return self.inside(equation, times=devices).run(bodies[0], inputs)
        if name in CALLS:
            return self.inside(equation).run(bodies[0], inputs)
        if any(_multiplies(body) for body in bodies):
            raise ValueError(f"jaxpr: how often {name} runs the matrix products in it cannot be told from the program")
        together = Depends.NOTHING
        for kind in inputs:
            together |= kind
        return [together] * len(equation.outvars)

    def loop(self, equation: Any, body: Any, inputs: list[Depends]) -> list[Depends]:
        """Until another turn adds nothing to what the carry depends on."""
        inner = getattr(body, "jaxpr", body)
        # Inputs: constants, the carry, then arrays with a slice for each turn; outputs: the carry, then such arrays.
        carried = sum(map(_same_rank, equation.outvars, inner.outvars))
        last = sum(map(_same_rank, equation.invars, inner.invars))
        first = last - carried
        while True:
            before = len(self.products)
            outputs = self.run(body, inputs)
            carry = [kind | more for kind, more in zip(inputs[first:last], outputs[:carried], strict=True)]
            if carry == inputs[first:last]:
                return outputs
            inputs = [*inputs[:first], *carry, *inputs[last:]]
            del self.products[before:]

    def inside(self, equation: Any, times: int = 1) -> _Place:
        return _Place(
            self.products,
            self.times * times,
            self.scopes + _scopes(equation),
            self.is_backward_checkpoint or bool(equation.params.get("differentiated")),
        )

    def add(self, equation: Any, inputs: list[Depends], flops: int) -> None:
        scopes = self.scopes + _scopes(equation)
        shapes = tuple(atom.aval.shape for atom in equation.invars)
        self.products.append(Product(scopes, self.pass_of(inputs, scopes), shapes, self.times, self.times * flops))

    def pass_of(self, inputs: list[Depends], scopes: tuple[str, ...]) -> Pass:
        of_cotangent = [kind for kind in inputs if Depends.COTANGENT in kind]
        others = [kind for kind in inputs if Depends.COTANGENT not in kind]
        if not of_cotangent:
            return "recomputation" if self.is_backward_checkpoint or RECOMPUTATION in scopes else "forward"
        is_weight = all(Depends.DATA not in kind for kind in others)
        return "backward_activations" if is_weight or ATTENTION in scopes else "backward_weights"


def _same_rank(one: Any, other: Any) -> bool:
    return len(one.aval.shape) == len(other.aval.shape)


def _scopes(equation: Any) -> tuple[str, ...]:
    """The names that the program gave; not those of JAX's transformations, nor einsum's formulas."""
    names = re.sub(r"\b(jvp|transpose|vmap)\(|\)", "", str(equation.source_info.name_stack)).split("/")
    return tuple(name for name in names if name and name != "rematted_computation" and "->" not in name)


def _multiplies(body: Any) -> bool:
    """Is there any product in it, at any depth?"""
    jaxpr = getattr(body, "jaxpr", body)
    return any(
        equation.primitive.name in ("dot_general", "conv_general_dilated")
        or OPAQUE.match(equation.primitive.name)
        or any(_multiplies(inner) for inner in jaxprs_in_params(equation.params))
        for equation in jaxpr.eqns
    )


def _dot_flops(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[dim] for dim in contracted)


def _convolution_flops(equation: Any) -> int:
    """A multiplication for every output and element of its window; of an input spread by zeros, without the zeros."""
    kernel = equation.invars[1].aval.shape
    out_dim = equation.params["dimension_numbers"].rhs_spec[0]
    window = math.prod(size for dim, size in enumerate(kernel) if dim != out_dim)
    outputs = math.prod(equation.outvars[0].aval.shape) // equation.params["batch_group_count"]
    return 2 * outputs * window // math.prod(equation.params["lhs_dilation"])
