"""The HTML page of a comparison in a real headless Chromium: layout, contrast, network and complaints."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from src.report.cli import main
from src.report.record import Case, FinalMetric, Record, write_record

pytest.importorskip("vl_convert")
pytest.importorskip("aiohttp")
from tests.support.browser import CHROMIUM, Tab, tab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install --no-install-recommends chromium"),
]

# What the page looks like: the SVGs without an area, and texts of SVGs with a contrast below 4.5 (WCAG's AA).
LOOK = """(() => {
  const light = colour => {
    const part = x => (x /= 255) <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(part);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const back = light(getComputedStyle(document.body).backgroundColor);
  const contrast = element => {
    const ink = light(getComputedStyle(element).fill);
    return (Math.max(ink, back) + .05) / (Math.min(ink, back) + .05);
  };
  const area = svg => { const box = svg.getBoundingClientRect(); return box.width * box.height; };
  return {
    overflow: document.documentElement.scrollWidth - innerWidth,
    svgs: document.querySelectorAll("svg").length,
    hidden: [...document.querySelectorAll("svg")].filter(svg => area(svg) < 1000).length,
    faint: [...document.querySelectorAll("svg text")].filter(text => contrast(text) < 4.5).map(text => text.innerHTML),
    scripts: document.scripts.length,
    dark: back < .5,
  };
})()"""


@pytest.fixture
def sweep(tmp_path: Path, trained: Record, case: Case) -> Path:
    """A folder of eight groups, more than there are colours, with long names, a failed run and a picture."""
    rows = [{"step": 10 * i, "epoch": 0, "time_s": 12.0 + i, "loss": 9.0 / i, "nuv": 5.0 * i} for i in range(1, 9)]
    for i in range(8):
        record = replace(
            trained, case=replace(case, batch_size=2 ** (i // 2)), history=rows, status="oom" if i == 7 else "done",
            config={"hp": {"lr": 10.0 ** -(1 + i % 2)}, "model": {"task": {"schedule": "name_" * 16 * (1 + i % 2)}}},
            final_metric=FinalMetric(name="nuv", value=40.0 + i, direction="max"),
        )  # fmt: skip
        write_record(record, tmp_path / "sweep" / str(i) / "result.json")
    return tmp_path / "sweep"


def test_the_page_fits_wide_and_phone_sized_windows_light_and_dark(sweep: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert main(["compare", str(sweep), "--format", "html", "--output", str(file)]) == 0

    async def looks() -> tuple[dict[tuple[Any, ...], Any], Tab]:
        found = {}
        async with tab() as browser:
            for width, scheme, media in [
                (1280, "light", "screen"), (1280, "dark", "screen"), (360, "light", "screen"), (360, "dark", "screen"),
                (1032, "dark", "print"),
            ]:  # fmt: skip
                await browser.look(width, scheme, media)
                await browser.goto(file)
                found[width, scheme, media] = await browser.value(LOOK)
        return found, browser

    found, browser = asyncio.run(looks())
    for (_, scheme, media), look in found.items():
        assert look["overflow"] <= 0 and look["hidden"] == 0 and look["faint"] == [] and look["scripts"] == 0
        assert look["svgs"] > 10 and look["dark"] == (scheme == "dark" and media == "screen")
    assert set(browser.requested) == {file.as_uri()} and browser.complaints == []
