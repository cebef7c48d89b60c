"""Makes a W&B project's dashboard: its panels are in tracking/workspace.py. Needs no device, imports no jax."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from sharder.errors import UserError, ended

USAGE = """Makes a dashboard of a W&B project, or makes it anew: training, speed and MFU, where the time of a step goes,
scaling, restarts; the runs grouped by experiment and tagged.

python -m sharder.dashboard project=<name> [entity=<name>]

  project=<name>   the project on W&B, as in tracking.project; it has runs: sent by tracking=online, or by `wandb sync`
  entity=<name>    the user or team that owns it; the account's default when not given

What was changed by hand in this dashboard is lost; other workspaces of the project are left alone.
Needs an account (`wandb login`, or WANDB_API_KEY) and the extra: pip install '.[dashboard]'"""
KEYS = ("project", "entity")
ALLOWED = "allowed: project=<name>, entity=<name>, --help"
NO_NAME = re.compile(r"""[/\\#?%:\s"']""")  # characters that no name has on W&B


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    return ended(lambda: _main(argv))


def _main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(USAGE)
        return 0
    given = parse(argv)
    from sharder.tracking.workspace import save

    print(f"saved: {save(given['project'], given.get('entity'))}")
    return 0


def parse(argv: Sequence[str]) -> dict[str, str]:
    """Overrides as the other commands take them; `project` is always among them."""
    given: dict[str, str] = {}
    for text in argv:
        key, equals, value = text.partition("=")
        if not equals or key not in KEYS:
            raise UserError(f"found {text!r}, {ALLOWED}; leave it out")
        if key in given:
            raise UserError(f"{key}: found two of them, {given[key]!r} and {value!r}, {ALLOWED}; name one {key}")
        if not value or NO_NAME.search(value):
            raise UserError(
                f"{key}: found {value!r}, allowed: a name on W&B, without spaces, quotes or any of / \\ # ? % :; "
                f"write {key}=<name>"
            )
        given[key] = value
    if "project" not in given:
        raise UserError(f"project: found none, {ALLOWED}; name one, as in project=sharder, which runs use by default")
    return given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
