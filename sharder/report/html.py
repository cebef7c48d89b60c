"""The little HTML that a page needs: everything is in one file, reads on a phone and on paper, and asks no network."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape

SMALLEST = 0.95  # pixels that a point of a drawing has at least: 9 points of text are then 9 pixels high
MEDIA = {".svg": "image/svg+xml", ".png": "image/png", ".mp4": "video/mp4"}
STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --faint: #666; --line: #ddd; --paper: #fff; --head: #f5f5f2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e6; --faint: #a3a3a0; --line: #3a3a3a; --paper: #16181a; --head: #202326; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 68rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
p, figcaption { max-width: 46rem; } p.faint { margin: .3rem 0; } figure { margin: 1rem 0; }
figcaption, .faint { color: var(--faint); font-size: .85rem; } .drawn { overflow-x: auto; }
img, video { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
code { font-size: .85em; } pre { overflow-x: auto; padding: .6rem; background: var(--head); border-radius: 4px; }
.table { overflow-x: auto; margin: .8rem 0; } table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  white-space: nowrap; overflow-wrap: normal; }
th { background: var(--head); } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.numbers { display: flex; flex-wrap: wrap; gap: .8rem; padding: 0; list-style: none; }
.numbers li { flex: 1 1 13rem; padding: .7rem .9rem; border: 1px solid var(--line); border-radius: 6px; }
.numbers b { display: block; font-size: 1.5rem; line-height: 1.3; } nav a { margin-right: .8rem; }
a { color: inherit; } details { margin: .6rem 0; }
@media print { body { max-width: none; font-size: 11px; }
  figure, tr, li { break-inside: avoid; } .table, .drawn { overflow: visible; } img { min-width: 0 !important; }
  th, td { white-space: normal; padding: .15rem .3rem; } details::details-content { content-visibility: visible; }
  a { text-decoration: none; } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def tag(name: str, text: str, **attributes: str) -> str:
    """`text` is put in as text."""
    told = "".join(f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items())
    return f"<{name}{told}>{escape(text)}</{name}>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns of numbers are aligned to the right."""
    cells = [[str(value) for value in row] for row in rows]
    number = [all(is_number(row[column]) for row in cells) for column in range(len(head))]
    kind = [' class="number"' if one else "" for one in number]
    lines = ["".join(f"<th{kind[i]}>{escape(name)}</th>" for i, name in enumerate(head))]
    lines += ["".join(f"<td{kind[i]}>{escape(value)}</td>" for i, value in enumerate(row)) for row in cells]
    return '<div class="table"><table>' + "".join(f"<tr>{line}</tr>" for line in lines) + "</table></div>"


def is_number(text: str) -> bool:
    try:
        float(text.removesuffix("%") or "0")
    except ValueError:
        return False
    return True


def embedded(data: bytes, ending: str, caption: str) -> str:
    """A figure or a video, inside the page. `ending`: of MEDIA. A drawing is never so small that it cannot be read."""
    source = f"data:{MEDIA[ending]};base64,{base64.b64encode(data).decode()}"
    if ending == ".mp4":
        media = f'<video controls muted playsinline preload="metadata" src="{source}"></video>'
    else:
        width = re.search(rb'<svg[^>]* width="([\d.]+)pt"', data)
        least = f' style="min-width: {float(width[1]) * SMALLEST:.0f}px"' if width else ""
        media = f'<div class="drawn"><img alt="{escape(caption)}" src="{source}"{least}></div>'
    return f"<figure>{media}<figcaption>{escape(caption)}</figcaption></figure>"


def numbers(found: Iterable[tuple[str, str]]) -> str:
    """(number, what it is) in a row of boxes."""
    items = "".join(f"<li><b>{escape(value)}</b>{escape(about)}</li>" for value, about in found)
    return f'<ul class="numbers">{items}</ul>'


def folded(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"
