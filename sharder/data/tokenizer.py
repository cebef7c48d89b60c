"""Prompts to token ids, and the check that they fit before training starts.

pi0     BOS <text> newline
pi0.5   BOS "Task: <text>, State: <bins>;\\nAction: "   bins: the normalised state, a number 0..255 a dimension

A prompt is never cut: cutting would drop the end of the instruction, or pi0.5's state, without anyone noticing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sharder.errors import UserError

BIN_EDGES = np.linspace(-1, 1, 257)[:-1]
ALL_ROWS = 4096  # up to so many rows every prompt is tried; of larger sets this many: half spread, half the longest
CHUNK_ROWS = 65_536


class Tokenizer(Protocol):
    vocabulary: int  # ids are below this

    def encode(self, prompt: str, state: np.ndarray | None = None) -> list[int]:
        """Ids of the pi0 prompt, or of the pi0.5 prompt when the normalised state (without padding) is given."""
        ...


class ByteTokenizer:
    """The embedded default: one id a byte of UTF-8. PAD 0, BOS 1, byte b is 2 + b."""

    pad, bos, vocabulary = 0, 1, 258

    def encode(self, prompt: str, state: np.ndarray | None = None) -> list[int]:
        text = f"{clean(prompt)}\n" if state is None else state_prompt(prompt, state)
        return [self.bos, *(2 + byte for byte in text.encode())]


class SentencePieceTokenizer:
    """A SentencePiece model by path; PaliGemma's for openpi's weights."""

    def __init__(self, path: str | Path):
        try:
            from sentencepiece import SentencePieceProcessor  # lazy: the byte tokenizer does without it
        except ImportError:
            raise UserError(
                f"data.tokenizer={path} needs the sentencepiece package: pip install sentencepiece"
            ) from None
        if not Path(path).is_file():
            raise UserError(
                f"data.tokenizer={path} is no file: give bytes, or the path of a SentencePiece model "
                "(PaliGemma's is called paligemma_tokenizer.model)"
            )
        self._model: Any = SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(Path(path).read_bytes())
            self.vocabulary = int(self._model.GetPieceSize())
        except (OSError, RuntimeError) as error:
            raise UserError(f"data.tokenizer={path} is not a SentencePiece model: {error}") from error
        if self.vocabulary == 0:
            raise UserError(f"data.tokenizer={path} is not a SentencePiece model: it holds no pieces")
        self._newline: list[int] = self._model.Encode("\n")
        if not self._newline or self._model.unk_id() in self._newline:
            raise UserError(f"data.tokenizer={path} has no token for a newline, which ends a pi0 prompt")

    def encode(self, prompt: str, state: np.ndarray | None = None) -> list[int]:
        if state is None:
            return [*self._model.Encode(clean(prompt), add_bos=True), *self._newline]
        return list(self._model.Encode(state_prompt(prompt, state), add_bos=True))


def make_tokenizer(name: str) -> Tokenizer:
    """data.tokenizer: bytes, or the path of a SentencePiece model."""
    return ByteTokenizer() if name == "bytes" else SentencePieceTokenizer(name)


def clean(prompt: str) -> str:
    return prompt.strip().replace("_", " ").replace("\n", " ")


def state_prompt(prompt: str, state: np.ndarray) -> str:
    return f"Task: {clean(prompt)}, State: {' '.join(map(str, state_bins(state)))};\nAction: "


def state_bins(state: np.ndarray) -> np.ndarray:
    """0..255 on [-1, 1]; 255 above and -1 below."""
    return np.digitize(state, BIN_EDGES) - 1


def encode_padded(
    tokenizer: Tokenizer, prompt: str, state: np.ndarray | None, prompt_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """tokens int32 [prompt_tokens], padded with 0, and their mask, bool."""
    ids = tokenizer.encode(prompt, state)
    if len(ids) > prompt_tokens:
        raise UserError(
            f"the prompt {clean(prompt)[:60]!r} needs {len(ids)} tokens, model.prompt_tokens={prompt_tokens}: "
            f"set model.prompt_tokens={len(ids)} or shorten it (data.prompt)"
        )
    tokens = np.zeros(prompt_tokens, np.int32)
    tokens[: len(ids)] = ids
    return tokens, np.arange(prompt_tokens) < len(ids)


def check_prompts(
    tokenizer: Tokenizer,
    recording: Any,
    *,
    prompt: str | None,
    normalise_state: Callable[[np.ndarray], np.ndarray] | None,
    prompt_tokens: int,
    vocabulary: int,
) -> int:
    """The most tokens a prompt needs; a UserError where that is over the budget. Runs before step 0, decodes nothing.

    `prompt` is data.prompt: one text for all rows. `normalise_state` is given for pi0.5, whose prompts spell the state.
    """
    if tokenizer.vocabulary > vocabulary:
        raise UserError(
            f"data.tokenizer makes token ids up to {tokenizer.vocabulary - 1}, but model.vocabulary={vocabulary}: "
            f"set model.vocabulary to at least {tokenizer.vocabulary}, or choose the tokenizer the model was made for"
        )
    tasks = [prompt if prompt is not None else recording.task_of(row) for row in range(len(recording))]
    for row, task in enumerate(tasks):
        if not clean(task).strip():
            where = "data.prompt" if prompt is not None else f"the task of row {row} of the recording"
            raise UserError(f"{where} is an empty text: set data.prompt to say what is done")
    if normalise_state is None:
        lengths = {task: len(tokenizer.encode(task)) for task in set(tasks)}
        needed = np.array([lengths[task] for task in tasks])
    else:
        rows = _rows_to_try(recording.states, tasks, normalise_state)
        states = normalise_state(np.asarray(recording.states[rows]))
        tasks = [tasks[row] for row in rows]
        needed = np.array([len(tokenizer.encode(task, state)) for task, state in zip(tasks, states, strict=True)])
    most = int(needed.max())
    if most > prompt_tokens:
        longest = clean(tasks[int(needed.argmax())])
        raise UserError(
            f"prompts need up to {most} tokens but model.prompt_tokens={prompt_tokens}: "
            f"{(needed > prompt_tokens).sum()} of {len(needed)} examples looked at are over it, "
            f"the longest being {longest[:60]!r}; set model.prompt_tokens={most} or shorten them (data.prompt)"
        )
    return most


def _rows_to_try(
    states: np.ndarray, tasks: list[str], normalise_state: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Rows whose pi0.5 prompts are tried: all of a small set, else some evenly spread and those of the longest text.

    Encoding every row of a million would take minutes; the number of characters is known at once, and digits are
    tokens of their own (or bytes) in the tokenizers that matter.
    """
    if len(tasks) <= ALL_ROWS:
        return np.arange(len(tasks))
    digits = np.array([len(str(number)) for number in range(-1, 256)])
    characters = np.array([len(clean(task).encode()) for task in tasks])
    for start in range(0, len(tasks), CHUNK_ROWS):
        bins = state_bins(normalise_state(np.asarray(states[start : start + CHUNK_ROWS])))
        characters[start : start + CHUNK_ROWS] += digits[bins + 1].sum(axis=1)
    longest = np.argpartition(characters, -ALL_ROWS // 2)[-ALL_ROWS // 2 :]
    spread = np.linspace(0, len(tasks) - 1, ALL_ROWS // 2).astype(int)
    return np.union1d(longest, spread)
