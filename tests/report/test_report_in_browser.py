"""The pages in a browser, wide and on a phone: nothing overflows, no figure is missing, nothing goes wrong.

A copy of the page carries scripts that tell what they find to a page around it, which the browser then prints.
"""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
WIDTHS, HEIGHT = (1280, 390), 2000
EARLY = """<script>
const wrong = [];
addEventListener("error", event => wrong.push(event.message || `no ${event.target.tagName}`), true);
addEventListener("securitypolicyviolation", event => wrong.push(event.blockedURI));
for (const name of ["error", "warn"]) console[name] = said => wrong.push(String(said));
</script>"""
LATE = """<script>
const videos = [...document.querySelectorAll("video")];
const loaded = video => video.readyState >= 1 || video.error ? 0 : new Promise(done => {
  video.onloadedmetadata = video.onerror = done;
});
Promise.all(videos.map(loaded)).then(() => {
  const wide = one => Math.round(one.getBoundingClientRect().width);
  parent.postMessage(JSON.stringify({
    wrong: wrong,
    inner_width: innerWidth,
    scroll_width: document.documentElement.scrollWidth,
    images: [...document.images].map(image => [image.naturalWidth, wide(image)]),
    videos: videos.map(video => [video.videoWidth, wide(video)]),
    outside: [...document.querySelectorAll("h1, h2, h3, p, li, .table, .drawn, details, nav")]
      .filter(one => one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 99)),
  }), "*");
});
</script>"""
FRAME = """<!doctype html><body style="margin: 0"><script>
addEventListener("message", event => document.getElementById("found").append(event.data));
</script><iframe src="{page}" style="width: {width}px; height: {height}px; border: 0"></iframe><pre id="found"></pre>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser here to look at the pages: {', '.join(BROWSERS)}")


def browse(page: Path, width: int, picture: Path) -> dict[str, Any]:
    """What a page that carries the scripts found. No window is narrower than 500 pixels, so the page is in a frame."""
    assert BROWSER is not None
    frame = page.with_name(f"frame-{page.stem}-{width}.html")
    frame.write_text(FRAME.format(page=page.as_uri(), width=width, height=HEIGHT))
    profile = page.with_name(f"profile-{page.stem}-{width}")
    command = [
        *(BROWSER, *FLAGS, f"--user-data-dir={profile}", f"--window-size={max(width, 500)},{HEIGHT}"),
        *("--virtual-time-budget=10000", "--dump-dom", f"--screenshot={picture}", frame.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)
    assert told is not None, f"the page's script did not get to its end: {done.stdout[-500:]}"
    with Image.open(picture) as image:
        image.crop((0, 0, width, HEIGHT)).save(picture)
    found: dict[str, Any] = json.loads(unescape(told[1]))
    return found


def check(page: Path, folder: Path, images: int, videos: int) -> None:
    watched = folder / "page.html"
    said = page.read_text()
    watched.write_text(said.replace("<head>", "<head>" + EARLY).replace("</body>", LATE + "</body>"))
    for width in WIDTHS:
        picture = folder / f"{width}.png"
        found = browse(watched, width, picture)
        assert found["wrong"] == []
        assert found["inner_width"] == width
        assert found["scroll_width"] <= width
        assert found["outside"] == []
        assert (len(found["images"]), len(found["videos"])) == (images, videos)
        for natural, shown in (*found["images"], *found["videos"]):
            assert natural > 0 and shown >= 300  # there, and large enough to be read
        with Image.open(picture) as image:
            assert image.size == (width, HEIGHT)
            assert len(image.getcolors(1 << 20) or []) > 10


def test_page_of_experiments(page_of_experiments: Path, tmp_path: Path) -> None:
    check(page_of_experiments, tmp_path, images=2, videos=0)


def test_page_of_a_run(page_of_a_run: Path, tmp_path: Path) -> None:
    check(page_of_a_run, tmp_path, images=1, videos=1)
