"""What validation refuses, and that each refusal is one line with the key, what was found and what is allowed."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from omegaconf import OmegaConf

from sharder.config import Config
from sharder.errors import UserError
from sharder.overrides import schema_keys
from sharder.validation import ABOVE_ZERO, ABOVE_ZERO_OR_NULL, AT_LEAST_ONE, AT_LEAST_ZERO, CHOICES, SHARES, validate

CONF = Path(__file__).parent.parent / "sharder" / "conf"


def changed(**values: Any) -> Config:
    """A config with some keys changed; dots are written __."""
    config = OmegaConf.structured(Config)
    for key, choice in (("remat", "none"), ("launch", "inline"), ("profile", "off")):
        config[key].name = choice
    for key, value in values.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    typed = OmegaConf.to_object(config)
    assert isinstance(typed, Config)
    return typed


def test_the_unchanged_config_is_valid() -> None:
    validate(changed())


REFUSED = [
    ({"train__steps": 0}, "train.steps", "found 0", "1 or more"),
    ({"train__seed": -1}, "train.seed", "found -1", "0 or more"),
    ({"train__batch_size": 10, "train__accumulation": 4}, "train.batch_size", "found 10", "a multiple of .* 4 x 1 = 4"),
    ({"train__batch_size": 1, "train__accumulation": 4}, "train.batch_size", "found 1", "the nearest is 4"),
    ({"run__name": "a/b"}, "run.name", "found 'a/b'", "folder name"),
    ({"run__id": ".."}, "run.id", "found '..'", "folder name"),
    ({"run__root": " "}, "run.root", "found ' '", "a path"),
    ({"model__variant": "pi1"}, "model.variant", "found 'pi1'", "one of pi0, pi05"),
    ({"model__compute_dtype": "float16"}, "model.compute_dtype", "found 'float16'", "float32, bfloat16"),
    ({"model__image_size": 225}, "model.image_size", "found 225", "model.vision.patch=14"),
    ({"model__vision__heads": 7}, "model.vision.heads", "found 7", "a divisor of model.vision.width=1152"),
    ({"model__action__depth": 17}, "model.action.depth", "found 17", "18"),
    ({"model__action__heads": 4}, "model.action.heads", "found 4", "8"),
    ({"model__action__kv_heads": 3, "model__language__kv_heads": 3}, "model.language.kv_heads", "found 3", "divisor"),
    ({"model__action__head_dim": 15, "model__language__head_dim": 15}, "model.language.head_dim", "found 15", "even"),
    ({"model__action__width": 1023}, "model.action.width", "found 1023", "an even number"),
    ({"model__horizon": 0}, "model.horizon", "found 0", "1 or more"),
    ({"model__prompt_tokens": -1}, "model.prompt_tokens", "found -1", "0 or more"),
    ({"model__language__lora_alpha": 0.0}, "model.language.lora_alpha", "found 0.0", "above 0"),
    ({"model__weights": "/nowhere"}, "model.weights", "found '/nowhere'", "a checkpoint, or null"),
    ({"model__vocabulary": 100}, "model.vocabulary", "found 100", "258 or more"),
    ({"data__kind": "lerobot"}, "data.root", "found null", "add data.root="),
    ({"data__tokenizer": "/nowhere.model"}, "data.tokenizer", "found '/nowhere.model'", "SentencePiece"),
    ({"data__normalization_file": "/nowhere.json"}, "data.normalization_file", "found '/nowhere.json'", "null"),
    ({"data__normalization": "minmax"}, "data.normalization", "found 'minmax'", "mean_std"),
    ({"data__episodes": [0, -1]}, "data.episodes", "found .0, -1.", "null for all"),
    ({"data__episodes": []}, "data.episodes", "found ..", "null for all"),
    ({"data__augment__crop": 0.0}, "data.augment.crop", "found 0.0", "at most 1"),
    ({"data__augment__crop": 1.5}, "data.augment.crop", "found 1.5", "at most 1"),
    ({"data__augment__contrast": 1.5}, "data.augment.contrast", "found 1.5", "0 to 1"),
    ({"data__augment__geometric_except": ["wrist"]}, "data.augment.geometric_except", "found 'wrist'", "base_0_rgb"),
    ({"data__workers": -1}, "data.workers", "found -1", "0 or more"),
    ({"optimizer__b2": 1.0}, "optimizer.b2", "found 1.0", "below 1"),
    ({"optimizer__ema_decay": -0.1}, "optimizer.ema_decay", "found -0.1", "below 1"),
    ({"optimizer__learning_rate": float("nan")}, "optimizer.learning_rate", "found nan", "a finite number"),
    ({"optimizer__final_learning_rate": 1.0}, "optimizer.final_learning_rate", "found 1", "at most"),
    ({"optimizer__warmup_steps": 30000}, "optimizer.warmup_steps", "found 30000", "fewer than"),
    ({"checkpoint__every_steps": 0}, "checkpoint.every_steps", "found 0", "1 or more"),
    ({"checkpoint__keep": 0}, "checkpoint.keep", "found 0", "2 or more"),
    ({"checkpoint__keep_every": 0}, "checkpoint.keep_every", "found 0", "or null"),
    ({"evaluation__execute": 51}, "evaluation.execute", "found 51", "model.horizon=50"),
    ({"hardware__count": 1, "mesh__fsdp": 2}, "hardware.count", "found 1", "1 x 2 = 2"),
    ({"profile__ablation": True}, "profile.ablation", "found true with profile=off", "set profile=window"),
    ({"hardware__peak_flops_per_s": -1.0}, "hardware.peak_flops_per_s", "found -1.0", "above 0, or null"),
    ({"hardware__hbm_bytes": 0}, "hardware.hbm_bytes", "found 0", "above 0, or null"),
    ({"hardware__memory_share": 75.0}, "hardware.memory_share", "found 75.0", "at most 1"),
    ({"plan__search": "best"}, "plan.search", "found 'best'", "one of none, batch, fastest"),
    ({"plan__remats": ["dot"]}, "plan.remats", "found .'dot'.", "some of none, dots, dots_no_batch, full"),
    ({"plan__layouts": []}, "plan.layouts", "found ..", "some of gather, auto, published"),
    ({"plan__batch_sizes": [8, 0]}, "plan.batch_sizes", "found .8, 0.", "numbers from 1"),
    ({"work__name": "most"}, "work.name", "found 'most'", "least, unrolled, published"),
    ({"overlap__name": "all"}, "overlap.name", "found 'all'", "default, off, published"),
    ({"mesh__batch": 2, "hardware__hosts": 3}, "hardware.hosts", "found 3", "a divisor"),
    ({"launch__processes": 2}, "launch.processes", "found 2", "launch=inline: 1"),
    ({"launch__name": "local", "launch__processes": 3, "mesh__fsdp": 4}, "launch.processes", "found 3", "a divisor"),
    ({"launch__late_after_s": 0.0}, "launch.late_after_s", "found 0.0", "above 0"),
    ({"mesh__fsdp": 5}, "train.batch_size", "found 32", "1 x 5 = 5"),
    ({"attn__name": "cudnn"}, "attn.name", "found 'cudnn'", "naive, xla, tiles, flash"),
    ({"layout__name": "zero3"}, "layout.name", "found 'zero3'", "gather, auto, published"),
    ({"train__seed": 2**63}, "train.seed", "found 9223372036854775808", "at most"),
    ({"train__steps": 10**20}, "train.steps", "found 1000", "at most"),
    ({"optimizer__weight_decay": float("inf")}, "optimizer.weight_decay", "found inf", "at most"),
    ({"model__horizon": 10**9}, "model.horizon", "found 1000000000", "at most"),
]


@pytest.mark.parametrize(("values", "key", "found", "allowed"), REFUSED, ids=lambda part: str(part)[:40])
def test_refusals(values: dict[str, Any], key: str, found: str, allowed: str) -> None:
    with pytest.raises(UserError) as refused:
        validate(changed(**values))
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"{key}: ")
    assert re.search(found, message)
    assert re.search(allowed, message)


CHECKED_OTHERWISE = {
    *("data.augment.crop", "data.augment.rotation_degrees", "data.episodes"),
    *(
        "optimizer.b1",
        "optimizer.b2",
        "optimizer.ema_decay",
        "checkpoint.keep",
        "checkpoint.keep_every",
        "hardware.count",
        "hardware.memory_share",
        "plan.batch_sizes",
        "plan.accumulations",
    ),
}


def test_every_number_has_a_range() -> None:
    numbers = {key for key, hint in schema_keys().items() if {int, float} & {hint, *get_args(hint)}}
    assert numbers - CHECKED_OTHERWISE == {*(*AT_LEAST_ONE, *AT_LEAST_ZERO, *ABOVE_ZERO, *ABOVE_ZERO_OR_NULL, *SHARES)}


def test_choices_are_the_options_of_their_groups() -> None:
    for key, words in CHOICES.items():
        group, name = key.split(".")
        if name in ("name", "mode", "kind") and group != "model":
            assert sorted(words) == sorted(path.stem for path in (CONF / group).glob("*.yaml")), key


def test_every_key_in_every_file_says_what_it_is() -> None:
    undocumented = []
    for path in CONF.rglob("*.yaml"):
        for line in path.read_text().splitlines():
            key = re.match(r"\s*(- (?!override|schema|_self_))?[a-z0-9_]+: \S", line)
            if key and not re.search(r"  # \S", line):
                undocumented.append(f"{path.relative_to(CONF)}: {line}")
    assert undocumented == []


def test_cameras_named_in_the_config_are_the_ones_chosen() -> None:
    assert changed().data.cameras.chosen() is None
    assert changed(data__cameras__base_0_rgb="top").data.cameras.chosen() == {"base_0_rgb": "top"}
