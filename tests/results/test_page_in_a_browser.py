"""The page as people see it: on a phone, in dark mode, by keyboard. With Chromium where it is installed."""

import html
import json
import re
import shutil
import struct
import subprocess
import zlib

import pytest

from ds_minimodel.results.render import PALETTES, Cell, Facts, Heading, Notes, Plot, Table, to_html

from .test_page import PNG

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LANGUAGES = "ar bg de el es fr hi ru sw th tr ur vi zh id".split()
ENOUGH = 4.5  # WCAG 2, level AA
# Sizes and contrasts of a page in frames that are as wide as a phone and as a desk's screen.
MEASURE = """
const luminance = color => { const [r, g, b] = color.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
const measure = frame => {
  const view = frame.contentWindow, page = frame.contentDocument, style = e => view.getComputedStyle(e);
  const ground = e => { while (style(e).backgroundColor === 'rgba(0, 0, 0, 0)') e = e.parentElement;
                        return luminance(style(e).backgroundColor); };
  const texts = [...page.querySelectorAll('body *')]
    .filter(e => [...e.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()));
  const contrasts = texts.map(e => [luminance(style(e).color), ground(e)].sort((a, b) => b - a))
    .map(([bright, dark]) => (bright + .05) / (dark + .05));
  const regions = [...page.querySelectorAll('.wide')], wide = regions.filter(e => e.scrollWidth > e.clientWidth);
  const focused = [...page.querySelectorAll('a, .wide')].filter(e => { e.focus(); return page.activeElement === e; });
  const named = regions.filter(e => page.getElementById(e.getAttribute('aria-labelledby')));
  return { sideways: page.documentElement.scrollWidth - page.documentElement.clientWidth,
           contrast: Math.min(...contrasts), scrolling: wide.length, named: named.length, regions: regions.length,
           figures: Math.max(...[...page.querySelectorAll('img')].map(e => e.clientWidth)) / page.body.clientWidth,
           focused: focused.length, ground: ground(page.body) };
};
onload = () => document.body.textContent = JSON.stringify([...document.querySelectorAll('iframe')].map(measure));
"""


def chunk(kind, data):
    """A part of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def page():
    """A report of 15 languages and 4 tasks, with a figure and a path that has no place to break."""
    columns = ["System", *LANGUAGES, "avg"]
    rows = [[Cell(name), *[Cell("53.7", "±1.0", name == "MiniJoint")] * 16] for name in ("BL_BASE", "MiniJoint")]
    table = Table("Table 2: performance", columns, rows, references=[[Cell("majority"), *[Cell("34.3")] * 16]])
    sizes, row = struct.pack(">IIBBBBB", 2640, 1, 8, 0, 0, 0, 0), zlib.compress(bytes(2641))
    png = PNG + b"".join(map(chunk, (b"IHDR", b"IDAT", b"IEND"), (sizes, row, b"")))
    blocks = [Facts({"Run": "/a/folder" * 30})]
    for task in ("xnli", "xquad", "ner", "topic"):
        blocks += [Heading(task), table, Plot("f.png", png, "Figure 3"), Notes(["a note " * 20])]
    return to_html("Report", blocks)


def test_plots_scale_with_the_page():
    """No figure is held at a width that a phone does not have, nor lies in what scrolls."""
    shown = page()
    assert "figure img { max-width: 100%; height: auto;" in shown
    assert shown.count('<figure><img alt="Figure 3" width="1320"') == 4


def luminance(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("mode", PALETTES)
def test_every_text_has_enough_contrast(mode):
    ground, *texts = (luminance(PALETTES[mode][name]) for name in ("ground", "text", "quiet", "link"))
    for text in texts:
        assert (max(ground, text) + 0.05) / (min(ground, text) + 0.05) >= ENOUGH


def test_colours_are_those_of_the_palettes_and_what_is_wide_scrolls_by_keyboard():
    shown = page()
    colors = set(re.findall(r"[ {]color: ([^;]+);", shown))
    assert colors == {"var(--text)", "var(--quiet)", "var(--link)"}
    ids = set(re.findall(r' id="(\w+)"', shown))
    assert set(re.findall(r'href="#(\w+)"', shown)) <= ids
    regions = re.findall(r'<div class="wide" role="region" tabindex="0" aria-labelledby="(\w+)"><table', shown)
    assert len(regions) == shown.count("<table") == 4 and set(regions) <= ids
    assert re.search(r'<body>\n<a class="skip" href="#results">', shown) and '<main id="results">' in shown


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize("mode", PALETTES)
def test_in_chromium(tmp_path, mode):
    frames = "".join(
        f'<iframe width="{width}" height="740" srcdoc="{html.escape(page())}"></iframe>' for width in (360, 1280)
    )
    (tmp_path / "frames.html").write_text(f'<meta charset="utf-8">{frames}<script>{MEASURE}</script>')
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    done = subprocess.run(
        [
            CHROMIUM,
            *flags.split(),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={list(PALETTES).index('dark') - list(PALETTES).index(mode)}",
            "--dump-dom",
            f"file://{tmp_path / 'frames.html'}",
        ],
        capture_output=True,
        text=True,
    )
    phone, desk = json.loads(re.search(r"<body>(\[.*?\])", done.stdout)[1])
    for view in (phone, desk):
        assert view["figures"] <= 1
        assert view["sideways"] == 0 and view["contrast"] >= ENOUGH
        assert view["regions"] == view["named"] == 4
        assert view["focused"] == 4 + 1 + 4, "regions, the link to skip and the contents"
        assert view["ground"] == pytest.approx(luminance(PALETTES[mode]["ground"]))
    assert phone["scrolling"] == 4
