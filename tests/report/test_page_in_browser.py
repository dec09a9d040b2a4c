"""The HTML page of a comparison in a real headless Chromium: layout, contrast, network and complaints."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from src.report.cli import main
from src.report.record import Case, ReachedMetric, Record, write_record

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
    scrolled: [...document.querySelectorAll(".wide,figure")].filter(box => box.scrollWidth > box.clientWidth + 1)
      .map(box => box.textContent.slice(0, 80)),
    svgs: document.querySelectorAll("svg").length,
    hidden: [...document.querySelectorAll("svg")].filter(svg => area(svg) < 1000).length,
    faint: [...document.querySelectorAll("svg text")].filter(text => contrast(text) < 4.5).map(text => text.innerHTML),
    scripts: document.scripts.length,
    dark: back < .5,
  };
})()"""

STATIC = "document.querySelectorAll('figure > svg').length"
HELP = "document.querySelector('#help').offsetHeight > 0"
OPEN = "document.querySelectorAll('details').forEach(details => { details.open = true; })"
FRAME = "new Promise(requestAnimationFrame)"
DRAWN = f"(async () => {{ while ({STATIC}) await {FRAME} }})()"
POINT = """(selector => {
  const box = document.querySelector(selector).getBoundingClientRect();
  return {x: box.x + box.width / 2, y: box.y + box.height / 2};
})"""


@pytest.fixture
def sweep(tmp_path: Path, trained: Record, case: Case) -> Path:
    """A folder of eight groups, more than there are colours, with long names, a failed run and a picture."""
    rows = [{"step": 10 * i, "epoch": 0, "time_s": 12.0 + i, "loss": 9.0 / i, "nuv": 5.0 * i} for i in range(1, 9)]
    for i in range(8):
        record = replace(
            trained, case=replace(case, batch_size=2 ** (i // 2)), history=rows, status="oom" if i == 7 else "done",
            config={"hp": {"lr": 10.0 ** -(1 + i % 2)}, "model": {"task": {"schedule": "name_" * 16 * (1 + i % 2)}}},
            final_metric=ReachedMetric(name="nuv", value=40.0 + i, direction="max"),
        )  # fmt: skip
        write_record(record, tmp_path / "sweep" / str(i) / "result.json")
    return tmp_path / "sweep"


def test_the_page_fits_wide_and_phone_sized_windows_light_and_dark(sweep: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert main(["compare", str(sweep), "--format", "html", "--output", str(file)]) == 0

    async def looks() -> tuple[dict[tuple[Any, ...], Any], Tab]:
        values = {}
        async with tab() as browser:
            for width, scheme, media in [
                (1280, "light", "screen"), (1280, "dark", "screen"), (360, "light", "screen"), (360, "dark", "screen"),
                (1032, "dark", "print"),
            ]:  # fmt: skip
                await browser.look(width, scheme, media)
                await browser.goto(file)
                if media == "screen":  # print shows what is folded
                    await browser.value(OPEN)
                values[width, scheme, media] = await browser.value(LOOK)
        return values, browser

    results, browser = asyncio.run(looks())
    for (_, scheme, media), look in results.items():
        assert look["overflow"] <= 0 and look["hidden"] == 0 and look["faint"] == [] and look["scripts"] == 0
        assert look["scrolled"] == []
        assert look["svgs"] > 10 and look["dark"] == (scheme == "dark" and media == "screen")
    assert set(browser.requested) == {file.as_uri()} and browser.complaints == []


def test_an_interactive_page_shows_values_and_zooms_and_is_static_without_javascript(
    sweep: Path, tmp_path: Path
) -> None:
    file, chart = tmp_path / "page.html", "#chart-2 .vega-embed"
    assert main(["compare", str(sweep), "--format", "html", "--interactive", "--output", str(file)]) == 0

    async def try_out() -> dict[str, Any]:
        values: dict[str, Any] = {}
        async with tab() as browser:
            await browser.look(1280)
            await browser.goto(file)
            values["folded"] = await browser.value(STATIC)
            await browser.value(OPEN)
            await browser.value(DRAWN)
            values["static"] = await browser.value(STATIC)
            values["charts"] = await browser.value("document.querySelectorAll('.vega-embed svg').length")
            await browser.value("document.querySelector('#chart-2').scrollIntoView()")
            at = await browser.value(f"{POINT}('{chart} .mark-symbol path[aria-roledescription=point]')")
            await browser.send("Input.dispatchMouseEvent", type="mouseMoved", **at)
            values["tooltip"] = await browser.value("document.querySelector('.vg-tooltip.visible')?.innerText")
            scatter = '[aria-label^="Final metric over rate: group"] .mark-symbol path[aria-roledescription=point]'
            await browser.value(f"document.querySelector('{scatter}').scrollIntoView()")
            await browser.send(
                "Input.dispatchMouseEvent", type="mouseMoved", **await browser.value(f"{POINT}('{scatter}')")
            )
            values["group"] = await browser.value("document.querySelector('.vg-tooltip.visible')?.innerText")
            await browser.value("document.querySelector('#chart-2').scrollIntoView()")
            labels = f"document.querySelector('{chart}').textContent"
            before, wheel = await browser.value(labels), {"type": "mouseWheel", "deltaX": 0, "deltaY": -300, **at}
            await browser.send("Input.dispatchMouseEvent", **wheel, modifiers=8)  # Shift
            await browser.value(f"(async () => {{ while ({labels} == {json.dumps(before)}) await {FRAME} }})()")
            zoomed = await browser.value(labels)
            await browser.send("Input.dispatchMouseEvent", **wheel)  # the wheel alone scrolls the page
            await browser.value(FRAME)
            values["zoomed again"] = await browser.value(labels) != zoomed
            values["help"] = await browser.value(HELP)
            values["asked for"], values["complaints"] = set(browser.requested), list(browser.complaints)
            await browser.send("Emulation.setScriptExecutionDisabled", value=True)
            await browser.goto(file)
            values["without"] = await browser.value(
                f"[{STATIC}, document.querySelectorAll('.vega-embed').length, {HELP}]"
            )
        return values

    results = asyncio.run(try_out())
    assert results["folded"] > 8 and results["static"] == 0 and results["charts"] > 10
    assert "nuv" in results["tooltip"] and "hp.batch_size" in results["tooltip"]
    assert "batch_size=1 " in results["group"] and "p_steady" in results["group"]
    assert results["help"] and not results["zoomed again"]
    assert results["asked for"] == {file.as_uri()} and results["complaints"] == []
    assert results["without"] == [results["charts"], 0, False]
