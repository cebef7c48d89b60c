"""How a weight is declared: its shape, its initializer and its dtype, once."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

# A flat view of a model's weights: slash-joined path -> array. What is trained, saved, converted and listed.
Weights = dict[str, jax.Array]
# Given the path of a stack of layers, a layer's number in it [] int32 and its weights as they are held, returns them
# ready to use: a layout gathers them here. Model code does not know how.
LayerHook = Callable[[str, jax.Array, nnx.State], nnx.State]
# Given a table [V, D] as it is held and row numbers [...], returns the rows [..., D].
RowHook = Callable[[jax.Array, jax.Array], jax.Array]


class Init:
    """Declares weights of one dtype; `layers` prepends the dim that a scan over layers runs along."""

    def __init__(self, rngs: nnx.Rngs, dtype: DTypeLike, layers: int | None = None):
        self.rngs, self.dtype, self.layers = rngs, dtype, layers

    def stacked(self, layers: int) -> Init:
        return Init(self.rngs, self.dtype, layers)

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.layers is None else (self.layers, *shape)

    def normal(self, shape: tuple[int, ...], fan_in: int) -> nnx.Param:
        """Normal with standard deviation fan_in ** -0.5, so that outputs keep their inputs' size."""
        values = jax.random.normal(self.rngs.params(), self._shape(shape), jnp.float32) * fan_in**-0.5
        return nnx.Param(values.astype(self.dtype))

    def zeros(self, shape: tuple[int, ...]) -> nnx.Param:
        return nnx.Param(jnp.zeros(self._shape(shape), self.dtype))

    def ones(self, shape: tuple[int, ...]) -> nnx.Param:
        return nnx.Param(jnp.ones(self._shape(shape), self.dtype))


class Dense(nnx.Module):
    """x [..., I] @ kernel [I, O] + bias [O], in the dtype of x."""

    def __init__(self, init: Init, inputs: int, outputs: int, *, zero: bool = False):
        self.kernel = init.zeros((inputs, outputs)) if zero else init.normal((inputs, outputs), inputs)
        self.bias = init.zeros((outputs,))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel[...].astype(x.dtype) + self.bias[...].astype(x.dtype)


def flatten(state: nnx.State) -> Weights:
    """The weights of an NNX state by path."""
    return {"/".join(map(str, path)): variable[...] for path, variable in nnx.to_flat_state(state)}


def unflatten(weights: Weights) -> nnx.State:
    """The inverse of `flatten`."""
    return nnx.from_flat_state([(tuple(path.split("/")), nnx.Param(value)) for path, value in weights.items()])


def travels_as(path: str, stored: DTypeLike, compute: DTypeLike) -> jnp.dtype:
    """The dtype in which a layer's weight loses nothing on its way to where it is used: the narrower of the two.

    Norms compute in float32 whatever the compute dtype; every other weight is cast to the dtype of its input.
    """
    used_as_stored = any(part.startswith("norm") for part in path.split("/"))
    return min(jnp.dtype(stored), jnp.dtype(stored if used_as_stored else compute), key=lambda dtype: dtype.itemsize)


def as_computed_with(weights: Weights, compute: DTypeLike) -> Weights:
    """Those of layers in the dtype that they are used in. Others are used once, where a step begins or ends."""
    return {
        path: weight.astype(travels_as(path, weight.dtype, compute)) if "/layers/" in path else weight
        for path, weight in weights.items()
    }
