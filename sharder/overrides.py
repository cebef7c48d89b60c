"""What a user may type: every `key=value` is held against the schema and the groups, before Hydra composes anything.

Hydra finds most of these mistakes too, in several lines that do not say what would have been right. Here each becomes
one line that names the nearest valid key, group or option.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Sequence

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from sharder.config import Config
from sharder.errors import UserError

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
NO_GUESS = "--help lists the groups and keys"
OPTIONAL = ("system", "experiment")  # groups of which nothing need be chosen
CLOSE_ENOUGH = 0.6  # of difflib's ratio: below it a suggestion would be a guess


def schema_keys(schema: type = Config, prefix: str = "") -> dict[str, object]:
    """Every dotted key -> its type; a group of keys -> its dataclass."""
    keys: dict[str, object] = {}
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        keys[prefix + field.name] = hint
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            keys.update(schema_keys(hint, f"{prefix}{field.name}."))
    return keys


class Vocabulary:
    """All that can be typed: keys of the schema, groups and their options, and Hydra's own keys."""

    def __init__(self, loader: ConfigLoader, command: str, typed: Sequence[str]) -> None:
        self._loader = loader
        self._command = command
        self._search_path = [text for text in typed if text.startswith("hydra.searchpath=")]  # a user's own presets
        self.keys = schema_keys()
        own = [name for name in loader.list_groups("") if name != "hydra" and not name.startswith("_")]
        self.groups = [*own, *(f"hydra/{name}" for name in loader.list_groups("hydra"))]

    def options(self, group: str) -> list[str]:
        return self._loader.get_group_options(group, ObjectType.CONFIG, self._command, self._search_path)

    def check(self, override: Override) -> None:
        """Raises UserError unless this can be composed. A sweep's values are checked when its points are."""
        key = override.key_or_group
        if override.package is not None:
            raise UserError(f"{override.input_line}: packages (@) are not used here; write group=option or key=value")
        if override.is_delete():
            raise UserError(f"{override.input_line}: keys and groups cannot be removed; set another value")
        if key in self.groups:
            if override.is_add() or override.is_force_add():
                raise UserError(f"{override.input_line}: the group is there, to choose from; write it without +")
            self._check_option(override)
        elif key.startswith("hydra."):
            return  # held against Hydra's composed config by check_hydra_key
        elif "/" in key:
            if key.replace("/", ".") in self.keys:
                self._check_key(key.replace("/", "."), override.input_line, False)
                raise UserError(f"{key}: is a key, not a group; write {key.replace('/', '.')}=...")
            near = _best(key, self.groups)
            raise UserError(f"{key}: no such group; " + (f"did you mean {near}=...?" if near else NO_GUESS))
        else:
            swept = override.is_sweep_override()
            self._check_key(key, None if swept else override.value(), swept)

    def _check_option(self, override: Override) -> None:
        group, options = override.key_or_group, self.options(override.key_or_group)
        if override.is_sweep_override():
            return
        value = override.value()
        if isinstance(value, dict):
            raise UserError(
                f"{group}: found keys and values, allowed: {', '.join(options)}; set a key as {group}.<key>=..."
            )
        if value is None and group in OPTIONAL:
            raise UserError(f"{group}: found null, allowed: {', '.join(options)}; leave it out to choose none")
        if str(value) not in options:
            near = _best(str(value), options)
            hint = f"did you mean {group}={near}?" if near else f"set {group}=<option>"
            raise UserError(f"{group}: no option {str(value)!r}, allowed: {', '.join(options)}; {hint}")

    def _check_key(self, key: str, value: object, swept: bool) -> None:
        if key not in self.keys:
            raise self.unknown_key(key)
        hint = self.keys[key]
        if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
            return
        inner = [field.name for field in dataclasses.fields(hint)]
        if swept or not isinstance(value, dict):
            found = "a sweep" if swept else repr(value)
            raise UserError(
                f"{key}: found {found}, but {key} is a group of keys ({', '.join(inner)}); "
                f"set {key}.{inner[0]}=... and so on"
            )
        for name, inner_value in value.items():
            self._check_key(f"{key}.{name}", inner_value, False)

    def unknown_key(self, key: str) -> UserError:
        """Names the nearest key; a group's name at the end of a made-up path names the group."""
        last = key.rpartition(".")[2]
        if last in self.groups:
            return UserError(f"{key}: no such key; did you mean the group {last}={'|'.join(self.options(last))}?")
        leaves = [name for name, hint in self.keys.items() if not dataclasses.is_dataclass(hint)]
        parent = key.rpartition(".")[0]
        near = _best(key, [*leaves, *self.groups])
        if near is None and parent in self.keys:
            inner = [name.removeprefix(f"{parent}.") for name in self.keys if name.rpartition(".")[0] == parent]
            return UserError(f"{key}: no such key; {parent} has {', '.join(inner)}")
        return UserError(f"{key}: no such key; " + (f"did you mean {near}?" if near else NO_GUESS))

    def explain(self, error: Exception) -> UserError:
        """One line for what Hydra or OmegaConf refused: a wrong type, or a wrong key inside a file."""
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        file = re.match(r"In '([^']+)'", str(error))
        where = f" (in {file[1]}.yaml)" if file else ""
        for cause in chain:
            key = str(cause.full_key or "").partition("[")[0] if isinstance(cause, OmegaConfBaseException) else ""
            if isinstance(cause, ConfigKeyError | AttributeError) and key:
                return UserError(f"{self.unknown_key(key)}{where}")
            if key in self.keys:
                return UserError(f"{key}: {_found(cause)}, allowed: {_in_words(self.keys[key])}{where}")
        if isinstance(error, MissingConfigException) and error.missing_cfg_file:
            group, _, option = error.missing_cfg_file.rpartition("/")
            return UserError(f"{group}: no option {option!r}, allowed: {', '.join(error.options or ())}{where}")
        if isinstance(error, YAMLError):
            return UserError(str(error))  # names the file and the line
        return UserError(f"{first_line(chain[-1])}{where}")


def check_hydra_key(override: Override, hydra: DictConfig) -> None:
    """Refuses a key under `hydra.` that the chosen launcher, sweeper and so on do not have."""
    key = override.key_or_group.removeprefix("hydra.")
    if override.is_sweep_override():
        point = key.removeprefix("sweeper.params.")
        fix = f"write {point}=a,b" if point != key else "choose one"
        raise UserError(f"hydra.{key}: found a sweep ({override.input_line}), allowed under hydra.: one value; {fix}")
    parent = key.rpartition(".")[0]
    below = OmegaConf.select(hydra, parent) if parent else hydra
    if key in _dotted(hydra):
        return
    free = isinstance(below, DictConfig) and OmegaConf.get_type(below) is dict and parent
    if (override.is_add() or override.is_force_add()) and free:
        return
    near = _best(key, _dotted(hydra))
    raise UserError(f"hydra.{key}: no such key; " + (f"did you mean hydra.{near}?" if near else "see --cfg"))


def _dotted(config: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for name in map(str, config):
        keys.append(f"{prefix}{name}")
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not (node._is_none() or node._is_missing() or node._is_interpolation()):
            keys += _dotted(node, f"{prefix}{name}.")
    return keys


def _best(typed: str, valid: Iterable[str]) -> str | None:
    scored = [(_likeness(typed.lower(), name), name) for name in valid]
    score, name = max(scored, default=(0.0, ""))
    return name if score >= CLOSE_ENOUGH else None


def _likeness(typed: str, name: str) -> float:
    """difflib's ratio of the last words and of the whole; an abbreviation (lr: learning_rate) is likely too."""
    last, name_last = typed.rpartition(".")[2], name.rpartition(".")[2]
    same_place = typed.rpartition(".")[0] == name.rpartition(".")[0]
    words = difflib.SequenceMatcher(None, last, name_last).ratio()
    if last and name_last.startswith(last[0]) and _is_subsequence(last, name_last):
        words = max(words, 0.8)
    return 0.6 * words + 0.4 * (1.0 if same_place else difflib.SequenceMatcher(None, typed, name).ratio())


def _is_subsequence(short: str, long: str) -> bool:
    rest = iter(long)
    return all(letter in rest for letter in short)


def _in_words(hint: object) -> str:
    """A type as a user would say it."""
    if isinstance(hint, type) and hint in WORDS:
        return WORDS[hint]
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return " or ".join("null" if part is type(None) else _in_words(part) for part in arguments)
    if typing.get_origin(hint) is list:
        return f"a list, written [a,b], of {_plural(arguments)}"
    return "a group of keys"


def _plural(arguments: Sequence[object]) -> str:
    plurals: dict[object, str] = {int: "whole numbers", float: "numbers", str: "texts"}
    return plurals.get(arguments[0], "values")


def _found(error: BaseException) -> str:
    """OmegaConf's three ways of saying that a value does not fit, as `found ...`."""
    text = first_line(error)
    if match := re.match(r"Value '(.*)' of type", text):
        return f"found {match[1]!r}"
    if "is not Optional" in text:
        return "found null"
    if match := re.search(r"(\w+) is not a (ListConfig|subclass)", text):
        return f"found {dict(str='text', int='a number', float='a number').get(match[1], match[1])}"
    return text


def first_line(error: BaseException) -> str:
    """Hydra and OmegaConf say what is wrong first, and then where in their own terms."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
