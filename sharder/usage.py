"""`--help`: the groups, their options and the main keys, read from the comments of conf/ so that they are said once.

Parses lines rather than YAML and imports no Hydra: it answers at once.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable

DEFAULT = re.compile(r'^  - (?P<group>[a-z]+): "?(?P<option>\w+)"?(?:  # (?P<about>.*))?$')
SECTION = re.compile(r"^(?P<key>\w+):\s*$")
KEY = re.compile(r"^(?P<indent>(?:  )?)(?P<key>\w+): (?P<value>.*?)  # (?P<about>.*)$")


def answer_help(command: str) -> None:
    """Ends the process if that is what was typed. The commands call it before they import anything slow."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(usage(command))
        sys.exit()


def usage(command: str) -> str:
    conf = files("sharder.conf")
    lines = conf.joinpath(f"{command}.yaml").read_text().splitlines()
    text = [lines[0].removeprefix("# "), "", f"python -m sharder.{command} [group=option ...] [key=value ...] [-m]", ""]
    text.append("Groups (* is the default; group.key=value sets one key of the chosen option):")
    for match in filter(None, map(DEFAULT.match, lines)):
        text.append(f"  {match['group']:<12}{match['about']}")
        for option, about in group_options(conf.joinpath(match["group"])):
            mark = "*" if option == match["option"] else " "
            text.append(f"   {mark} {option:<16} {about}")
    text += ["", "Main keys:"]
    section = ""
    for line in lines[1:]:
        if heading := SECTION.match(line):
            section = heading["key"]
        elif (entry := KEY.match(line)) and not (entry["indent"] and section in ("defaults", "hydra")):
            key = f"{section}.{entry['key']}" if entry["indent"] else entry["key"]
            text.append(f"  {key + '=' + entry['value']:<27} {entry['about']}")
    text += ["", "Flags:"]
    text.append(
        "  -m, --multirun   a sweep: each combination of values given as key=a,b runs in its own folder and process"
    )
    text.append("  --cfg            print the composed config and stop")
    text.append("  --help           this text; every key of a group is explained in sharder/conf/<group>/<option>.yaml")
    return "\n".join(text)


def group_options(group: Traversable) -> list[tuple[str, str]]:
    """(option, its first comment line) of every file of a group."""
    options = []
    for entry in sorted(group.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            lines = entry.read_text().splitlines()
            comments = [line[2:] for line in lines if line.startswith("# ") and "@package" not in line]
            options.append((entry.name.removesuffix(".yaml"), comments[0] if comments else ""))
    return options
