"""pi0 and pi0.5: cameras, a prompt and the robot's state in; a velocity field over action chunks out.

    B batch   P prefix tokens   A suffix tokens   H horizon (actions a chunk)   D a width   X action dim

The observation, drawn once (a camera the robot lacks is simply not there: equal to masking it, and free; with
`Execution.absent_cameras` it is put there, masked):

    images       {camera: [B, side, side, 3] float32 in [-1, 1]}     image_masks  {camera: [B] bool}
    tokens       [B, prompt] int32        token_mask  [B, prompt] bool
    state        [B, X] float32, normalised
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from sharder.config import ModelConfig
from sharder.model.attention import BlockMask
from sharder.model.execution import Execution
from sharder.model.fused import valid_first
from sharder.model.gemma import Cache, Gemma, Streams
from sharder.model.siglip import Siglip
from sharder.model.weight import Dense, Init, Weights, flatten, unflatten

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")  # their order in the prefix
PREFIX, STATE, ACTIONS = 0, 1, 2  # attention blocks, see BlockMask
SHORTEST_PERIOD, LONGEST_PERIOD = 4e-3, 4.0  # of the flow time's embedding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Observation:
    images: dict[str, jax.Array]
    image_masks: dict[str, jax.Array]
    tokens: jax.Array
    token_mask: jax.Array
    state: jax.Array


def with_absent_cameras(observation: Observation, side: int) -> Observation:
    """And those that the robot lacks: black images of `side` pixels, masked. They come out of a barrier, so that to the
    compiler they are pictures like others: it would know that constants are alike, and run one of them for all."""
    B = observation.state.shape[0]
    absent = [camera for camera in CAMERAS if camera not in observation.images]
    black, nothing = jnp.full((B, side, side, 3), -1.0, jnp.float32), jnp.zeros(B, bool)
    images = jax.lax.optimization_barrier([black for _ in absent])
    return dataclasses.replace(
        observation,
        images=observation.images | dict(zip(absent, images, strict=True)),
        image_masks=observation.image_masks | dict.fromkeys(absent, nothing),
    )


@dataclass(frozen=True)
class Prefix:
    tokens: jax.Array  # [B, P, D]
    valid: jax.Array  # [B, P] bool
    valid_first: int = 0  # as in BlockMask


@dataclass(frozen=True)
class Suffix:
    tokens: jax.Array  # [B, A, D]
    blocks: np.ndarray  # [A]
    condition: jax.Array | None  # [B, D], pi0.5 only


def time_embedding(time_B: jax.Array, width: int) -> jax.Array:
    """Sines then cosines [B, width] of the flow time over periods spaced evenly in their logarithm."""
    fraction = jnp.linspace(0.0, 1.0, width // 2)
    period = SHORTEST_PERIOD * (LONGEST_PERIOD / SHORTEST_PERIOD) ** fraction
    angle = 2 * jnp.pi * time_B[:, None] / period
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


class Pi0(nnx.Module):
    """Weights of pi0 (`variant: pi0`) or pi0.5 (`variant: pi05`)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, execution: Execution | None = None):
        self.config, self.execution = nnx.static(config), nnx.static(execution or Execution())
        self.compute_dtype = nnx.static(jnp.dtype(config.compute_dtype))
        init = Init(rngs, jnp.dtype(config.weight_dtype))
        width = config.action.width
        self.vision = Siglip(init, config.vision, config.image_size, config.language.width, self.compute_dtype)
        self.gemma = Gemma(init, config.language, config.action, config.vocabulary, adaptive=self.is_pi05)
        self.action_in, self.action_out = Dense(init, config.action_dim, width), Dense(init, width, config.action_dim)
        if self.is_pi05:
            self.time_in, self.time_out = Dense(init, width, width), Dense(init, width, width)
        else:
            self.state_in = Dense(init, config.action_dim, width)
            self.action_time_in, self.action_time_out = Dense(init, 2 * width, width), Dense(init, width, width)

    @property
    def is_pi05(self) -> bool:
        return self.config.variant == "pi05"

    def embed_prefix(self, observation: Observation) -> Prefix:
        """The cameras, then the prompt; for a fused kernel what is valid of them first."""
        if self.execution.absent_cameras:
            observation = with_absent_cameras(observation, self.config.image_size)
        parts, valid = [], []
        for camera, part in self.embed_cameras(observation):
            parts.append(part)
            valid.append(jnp.broadcast_to(observation.image_masks[camera][:, None], part.shape[:2]))
        parts.append(self.gemma.embed(observation.tokens, self.execution).astype(self.compute_dtype))
        valid.append(observation.token_mask)
        with jax.named_scope("embedding"):
            tokens_BPD, valid_BP = jnp.concatenate(parts, axis=1), jnp.concatenate(valid, axis=1)
            fused = self.execution.fused
            if fused is None or not fused.takes_head(self.config.language.head_dim):
                return Prefix(tokens_BPD, valid_BP)
            return Prefix(*valid_first(tokens_BPD, valid_BP), valid_first=valid_BP.shape[1])

    def embed_cameras(self, observation: Observation) -> Iterator[tuple[str, jax.Array]]:
        """Each camera that is there, and its tokens [B, T, D]: of one vision pass, in which an example's images lie
        side by side, so that examples can be split over devices; or of a pass each."""
        cameras = [camera for camera in CAMERAS if camera in observation.images]
        if not self.execution.cameras_together:
            yield from ((camera, self.vision(observation.images[camera], self.execution)) for camera in cameras)
        elif cameras:
            images = jnp.stack([observation.images[camera] for camera in cameras], axis=1)
            tokens = self.vision(images.reshape(-1, *images.shape[2:]), self.execution)
            tokens = tokens.reshape(*images.shape[:2], *tokens.shape[1:])
            yield from ((camera, tokens[:, i]) for i, camera in enumerate(cameras))

    def embed_suffix(self, state: jax.Array, noisy_actions: jax.Array, time_B: jax.Array) -> Suffix:
        """In float32: these layers are small, and the flow time needs the digits."""
        with jax.named_scope("action_head"):
            H, width = self.config.horizon, self.config.action.width
            actions_BHD, time_BD = self.action_in(noisy_actions), time_embedding(time_B, width)
            if self.is_pi05:
                condition = jax.nn.swish(self.time_out(jax.nn.swish(self.time_in(time_BD))))
                return Suffix(actions_BHD.astype(self.compute_dtype), np.full(H, ACTIONS), condition)
            with_time = jnp.concatenate([actions_BHD, jnp.broadcast_to(time_BD[:, None], actions_BHD.shape)], axis=-1)
            actions_BHD = self.action_time_out(jax.nn.swish(self.action_time_in(with_time)))
            tokens = jnp.concatenate([self.state_in(state)[:, None], actions_BHD], axis=1)
            return Suffix(tokens.astype(self.compute_dtype), np.array([STATE] + [ACTIONS] * H), None)

    def _read_velocity(self, suffix_out: jax.Array | None) -> jax.Array:
        assert suffix_out is not None
        with jax.named_scope("action_head"):
            return self.action_out(suffix_out[:, -self.config.horizon :].astype(jnp.float32))

    def velocity(self, observation: Observation, noisy_actions: jax.Array, time_B: jax.Array) -> jax.Array:
        """The velocity [B, H, X] float32 at `noisy_actions` [B, H, X] and flow time in [0, 1]."""
        prefix = self.embed_prefix(observation)
        suffix = self.embed_suffix(observation.state, noisy_actions, time_B)
        valid = jnp.concatenate([prefix.valid, jnp.ones(suffix.tokens.shape[:2], bool)], axis=1)
        blocks = np.concatenate([np.full(prefix.tokens.shape[1], PREFIX), suffix.blocks])
        out, _ = self.gemma(
            Streams(prefix.tokens, suffix.tokens),
            jnp.cumsum(valid, axis=1) - 1,
            BlockMask(blocks, blocks, valid, prefix.valid_first),
            suffix.condition,
            self.execution,
        )
        return self._read_velocity(out.action)

    def fill_cache(self, observation: Observation) -> tuple[Cache, jax.Array]:
        """The prefix's keys and values, and which of its tokens are valid [B, P]."""
        prefix = self.embed_prefix(observation)
        blocks = np.full(prefix.tokens.shape[1], PREFIX)
        _, cache = self.gemma(
            Streams(prefix.tokens, None),
            jnp.cumsum(prefix.valid, axis=1) - 1,
            BlockMask(blocks, blocks, prefix.valid, prefix.valid_first),
            None,
            self.execution,
            keep_cache=True,
        )
        assert cache is not None
        return cache, prefix.valid

    def sample_actions(self, observation: Observation, noise: jax.Array, steps: int) -> jax.Array:
        """Actions [B, H, X]: Euler steps of the flow from `noise` at time 1 to time 0, the prefix computed once."""
        cache, prefix_valid = self.fill_cache(observation)

        def euler(actions: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            time_B = jnp.full(actions.shape[0], 1.0 - i / steps, jnp.float32)
            suffix = self.embed_suffix(observation.state, actions, time_B)
            valid = jnp.concatenate([prefix_valid, jnp.ones(suffix.tokens.shape[:2], bool)], axis=1)
            keys = np.concatenate([np.full(prefix_valid.shape[1], PREFIX), suffix.blocks])
            positions = prefix_valid.sum(1, keepdims=True) + np.arange(suffix.tokens.shape[1])
            mask = BlockMask(suffix.blocks, keys, valid)
            out, _ = self.gemma(
                Streams(None, suffix.tokens), positions, mask, suffix.condition, self.execution, cache=cache
            )
            return actions - self._read_velocity(out.action) / steps, None

        return jax.lax.scan(euler, noise, jnp.arange(steps))[0]


def flow_matching_loss(
    model: Pi0, observation: Observation, actions: jax.Array, noise: jax.Array, time_B: jax.Array
) -> jax.Array:
    """Squared error of the velocity, averaged over action dims: [B, H] float32.

    The path runs straight from the actions at time 0 to the noise at time 1, so its velocity is noise - actions.
    """
    time = time_B[:, None, None]
    with jax.named_scope("noise"):
        noisy_actions = time * noise + (1 - time) * actions
    predicted = model.velocity(observation, noisy_actions, time_B)
    with jax.named_scope("loss"):
        return jnp.square(predicted - (noise - actions)).mean(-1)


def build(config: ModelConfig, weights: Weights, execution: Execution | None = None) -> Pi0:
    """A model around given weights; costs nothing under jit."""
    graph = nnx.graphdef(nnx.eval_shape(lambda: Pi0(config, nnx.Rngs(0), execution)))
    return nnx.merge(graph, unflatten(weights))


def init_weights(config: ModelConfig, key: jax.Array) -> Weights:
    return flatten(nnx.state(Pi0(config, nnx.Rngs(params=key)), nnx.Param))


def abstract_weights(config: ModelConfig) -> Weights:
    """Shapes and dtypes, no memory."""
    return jax.eval_shape(lambda: init_weights(config, jax.random.key(0)))
