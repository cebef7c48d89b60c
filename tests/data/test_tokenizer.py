"""Prompts as pi0 and pi0.5 expect them, by bytes and by SentencePiece, and refused before step 0 when too long."""

import pickle

import numpy as np
import pytest
import sentencepiece
from fake_recording import FakeRecording

from sharder.data import tokenizer as tokenizer_module
from sharder.data.tokenizer import (
    ByteTokenizer,
    SentencePieceTokenizer,
    check_prompts,
    encode_padded,
    make_tokenizer,
    state_bins,
)
from sharder.errors import UserError


def train_model(path, **options):
    text = ["touch", "the", "red", "ball", "green", "box", "blue", "disc", "Task", "State", "Action"]
    sentences = [" ".join(np.random.default_rng(seed).permutation(text)) for seed in range(50)]
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(sentences),
        model_prefix=str(path.with_suffix("")),
        vocab_size=90,
        hard_vocab_limit=False,
        model_type="bpe",
        byte_fallback=False,
        required_chars="0123456789:;,-",
        minloglevel=2,
        **options,
    )
    return path


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    """Like PaliGemma's: no normalization of the text, and a newline of its own."""
    return train_model(
        tmp_path_factory.mktemp("sentencepiece") / "tiny.model",
        user_defined_symbols=["\n"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
    )


def test_bytes_spell_the_pi0_prompt():
    ids = ByteTokenizer().encode("  pick_up the\ncup é ")
    assert ids[0] == 1
    assert bytes(token - 2 for token in ids[1:]).decode() == "pick up the cup é\n"
    assert max(ByteTokenizer().encode("ÿ")) < ByteTokenizer.vocabulary == 258


def test_bytes_spell_the_pi05_prompt():
    ids = ByteTokenizer().encode("pick_up ", np.array([-1.5, -1.0, 0.0, 0.999, 3.0]))
    assert bytes(token - 2 for token in ids[1:]).decode() == "Task: pick up, State: -1 0 128 255 255;\nAction: "


def test_bins_are_256_equal_steps():
    centres = -1 + (np.arange(256) + 0.5) / 128
    np.testing.assert_array_equal(state_bins(centres), np.arange(256))


def test_sentencepiece_prompts(model_path):
    tokenizer = make_tokenizer(str(model_path))
    model = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
    ids = tokenizer.encode(" touch_the red ball")
    assert ids[0] == model.bos_id() and ids.count(model.bos_id()) == 1
    assert model.Decode(ids[1:]) == "touch the red ball\n"
    assert ids[-1] == model.PieceToId("\n")
    ids = tokenizer.encode("touch the box", np.array([0.0, 1.0]))
    assert ids[0] == model.bos_id() and ids[-1] != model.PieceToId("\n")
    assert model.Decode(ids[1:]) == "Task: touch the box, State: 128 255;\nAction: "
    assert max(ids) < tokenizer.vocabulary == model.GetPieceSize()
    assert pickle.loads(pickle.dumps(tokenizer)).encode("touch the box") == tokenizer.encode("touch the box")


def test_a_bad_sentencepiece_path_is_named(tmp_path):
    with pytest.raises(UserError, match=r"data\.tokenizer=.*absent\.model is no file"):
        make_tokenizer(str(tmp_path / "absent.model"))
    for content in (b"", b"not a model at all"):
        (tmp_path / "bad.model").write_bytes(content)
        with pytest.raises(UserError, match=r"data\.tokenizer=.*bad\.model is not a SentencePiece model"):
            SentencePieceTokenizer(tmp_path / "bad.model")


def test_a_model_without_newline_is_refused(tmp_path):
    with pytest.raises(UserError, match="no token for a newline"):
        SentencePieceTokenizer(train_model(tmp_path / "plain.model"))


def test_padding_and_mask():
    tokens, mask = encode_padded(ByteTokenizer(), "ab", None, 6)
    assert tokens.tolist() == [1, 99, 100, 12, 0, 0] and tokens.dtype == np.int32
    assert mask.tolist() == [True] * 4 + [False] * 2 and mask.dtype == bool
    with pytest.raises(UserError, match=r"'abcdef' needs 8 tokens, model\.prompt_tokens=6"):
        encode_padded(ByteTokenizer(), "abcdef", None, 6)


def check(recording, *, prompt=None, normalise_state=None, prompt_tokens=48, vocabulary=258, tokenizer=None):
    return check_prompts(
        tokenizer or ByteTokenizer(),
        recording,
        prompt=prompt,
        normalise_state=normalise_state,
        prompt_tokens=prompt_tokens,
        vocabulary=vocabulary,
    )


def test_the_budget_counts_tokens_and_examples():
    recording = FakeRecording(100)
    recording.tasks[1] = "stack every cup"  # 17 tokens; the other task needs 20
    assert check(recording, prompt_tokens=20) == 20
    with pytest.raises(UserError, match=r"up to 20 tokens but model\.prompt_tokens=19: 50 of 100 examples.*red ball"):
        check(recording, prompt_tokens=19)
    assert check(recording, prompt="go", prompt_tokens=19) == 4
    recording.tasks.append("a very long task that no selected episode has " * 3)
    recording.tasks[0] = "go"
    recording.task_of = lambda row: recording.tasks[row % 2]
    assert check(recording, prompt_tokens=19) == 17


def test_the_budget_of_pi05_depends_on_the_state():
    recording = FakeRecording(100)
    recording.states[:] = -2.0  # "-1" a joint: two characters
    at_rest = check(recording, normalise_state=lambda states: states, prompt_tokens=200)
    recording.states[30] = 0.9  # "243" a joint
    assert check(recording, normalise_state=lambda states: states, prompt_tokens=200) == at_rest + 4
    with pytest.raises(UserError, match=rf"up to {at_rest + 4} tokens .* 1 of 100 examples"):
        check(recording, normalise_state=lambda states: states, prompt_tokens=at_rest)


def test_the_longest_of_a_large_set_is_found(monkeypatch):
    """One long row among many, where only some rows can be tried."""
    monkeypatch.setattr(tokenizer_module, "ALL_ROWS", 64)
    monkeypatch.setattr(tokenizer_module, "CHUNK_ROWS", 1000)
    recording = FakeRecording(5000)
    recording.states[:] = -2.0
    shortest = check(recording, normalise_state=lambda states: states, prompt_tokens=200)
    recording.states[3230, 0] = 0.9
    assert check(recording, normalise_state=lambda states: states, prompt_tokens=200) == shortest + 1


def test_empty_texts_and_small_vocabularies_are_refused():
    recording = FakeRecording(100)
    with pytest.raises(UserError, match=r"data\.prompt is an empty text"):
        check(recording, prompt=" \n")
    recording.tasks[1] = "_"
    with pytest.raises(UserError, match=r"task of row 25 .*empty"):
        check(recording)
    with pytest.raises(UserError, match=r"ids up to 257, but model\.vocabulary=257"):
        check(FakeRecording(10), vocabulary=257)
