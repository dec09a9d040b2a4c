"""The HTML page of a comparison: its figures, its texts as text, no script and no network."""

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from src.errors import UserError
from src.measure.reading import Reading, Remark
from src.report.compare import charts
from src.report.compare.build import compare, compare_each
from src.report.compare.curves import curve_spec
from src.report.compare.quantities import spread
from src.report.compare.text import change
from src.report.load import load
from src.report.record import Case, ReachedMetric, Record, RunError, Steady, read_record, write_record

pytest.importorskip("vl_convert")
from src.report.compare.page import page, pages

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\x00</svg></style>"


class Page(HTMLParser):
    """The tags of a page with their attributes, and its texts outside the style."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def records(folder: Path, trained: Record, case: Case, **others: object) -> list[Path]:
    """Writes two groups: two seeds of one batch size, and one run of another."""
    paths = []
    for i, (batch, nuv) in enumerate([(512, 50.0), (512, 52.5), (1024, 61.5)]):
        assert trained.final_metric is not None
        metric = replace(trained.final_metric, value=nuv)
        record = replace(trained, case=replace(case, batch_size=batch), final_metric=metric, **others)
        write_record(record, folder / f"{i}.json")
        paths.append(folder / f"{i}.json")
    return paths


def test_the_figures_of_the_page_are_those_of_the_comparison(tmp_path: Path, trained: Record, case: Case) -> None:
    comparison = compare(load(records(tmp_path, trained, case)))
    parser = Page(page(comparison))
    base, other = comparison.groups
    for quantity in comparison.quantities:
        for group in (base, other):
            if quantity.name in group.estimates:
                expected = spread(group.estimates[quantity.name], quantity)
                assert any(text.startswith(expected) for text in parser.texts), quantity.name
    moved = change(other.estimates["metric"], base.estimates["metric"])
    assert moved == "+20.0%" and moved in parser.texts
    assert set(comparison.warnings) <= set(parser.texts)
    headings = [int(tag[1]) for tag, _ in parser.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1 and all(b - a <= 1 for a, b in pairwise(headings))
    tags = [tag for tag, _ in parser.tags]
    assert tags.count("table") == tags.count("caption")
    charts = [attributes for tag, attributes in parser.tags if tag == "svg"]
    assert charts and all(chart.get("role") == "img" and chart.get("aria-label") for chart in charts)
    assert tags.count("desc") == len(charts)


def test_a_sweeps_page_draws_its_figures_over_each_varied_key(tmp_path: Path, trained: Record, case: Case) -> None:
    assert trained.final_metric is not None
    values = [(512, 1e-3, 50.0), (512, 1e-2, 52.5), (1024, 1e-2, 61.5), (1024, 1e-3, None)]
    for i, (batch, lr, nuv) in enumerate(values):
        record = replace(
            trained, case=replace(case, batch_size=batch), config={"hp": {"lr": lr}}, status="done" if nuv else "oom",
            final_metric=replace(trained.final_metric, value=nuv),
        )  # fmt: skip
        write_record(record, tmp_path / str(i) / "result.json")
    parser = Page(page(compare(load([tmp_path]), published=False)))
    drawn = [attributes["aria-label"] for tag, attributes in parser.tags if tag == "svg"]
    assert drawn[:2] == ["nuv: single runs, no intervals", "p_steady: single runs, no intervals"]
    assert drawn[2:6] == [
        "nuv over hp.batch_size",
        "p_steady over hp.batch_size",
        "nuv over hp.lr",
        "p_steady over hp.lr",
    ]
    assert drawn[6] is not None and drawn[6].startswith("Importance: nuv and each numeric key")
    assert drawn[7] is not None and drawn[7].startswith("All keys and figures")
    assert f"hp.batch_size=1024 hp.lr=0.01: {tmp_path / '2'}" in parser.texts
    assert parser.texts.index("Not done") < parser.texts.index("What was varied")


def test_models_of_other_figures_have_a_section_each(tmp_path: Path, trained: Record, case: Case) -> None:
    """A run that ended before its metric is in its model's; the charts of all have ids of their own."""
    first = records(tmp_path, trained, case)
    (tmp_path / "other").mkdir()
    metric = ReachedMetric(name="mae", value=0.5, direction="min")
    others = records(tmp_path / "other", trained, replace(case, model="se3_transformer"), unit="graphs")
    for i, path in enumerate(others):
        other = read_record(path)
        write_record(replace(other, final_metric=replace(metric, value=0.5 + i)), path)
    failed = replace(trained, status="failed", final_metric=None, error=RunError(type="X", message="y"))
    write_record(failed, tmp_path / "failed.json")
    loaded = load([*first, *others, tmp_path / "failed.json"])
    with pytest.raises(UserError, match="compare runs of one kind and unit"):
        compare(loaded)
    one, other = compare_each(loaded, published=False)
    assert [len(group.runs) for group in one.groups] == [3, 1] and len(other.groups) == 2
    written = pages([one, other], interactive=True)
    titles = [text for text in Page(written).texts if " runs, " in text]
    assert [title.partition(" on ")[0] for title in titles[-2:]] == ["moflow", "se3_transformer"]
    charts = re.findall(r'id="(chart-\d+)"', written)
    assert charts == [f"chart-{i}" for i in range(len(charts))] and written.count('id="help"') == 1
    assert compare_each(load(first), published=False) == [compare(load(first), published=False)]


def test_texts_of_a_record_stay_text(tmp_path: Path, trained: Record, case: Case) -> None:
    hostile = replace(case, model=HOSTILE, datamodule=HOSTILE, precision=HOSTILE)
    history = [{"step": step, "val_<script>": 1.0, "loss": 1.0 / step} for step in (1, 2, 3)]
    paths = records(tmp_path, trained, hostile, environment={"command": HOSTILE, "driver": HOSTILE}, history=history)
    failed = replace(trained, case=hostile, status="failed", error=RunError(type="X", message=HOSTILE))
    write_record(failed, tmp_path / "failed.json")
    written = page(compare(load([*paths, tmp_path / "failed.json"]), published=False))
    parser = Page(written)
    assert "script" not in [tag for tag, _ in parser.tags] and "<script" not in written
    assert not re.search("[\x00-\x08\x0b-\x1f]", written)
    assert any("<script>alert(1)</script>" in text for text in parser.texts)
    assert not [name for _, attributes in parser.tags for name in attributes if name.startswith("on")]


def test_what_was_read_is_folded_with_all_examples(
    tmp_path: Path, trained: Record, case: Case, reading: Reading
) -> None:
    paths = records(tmp_path, trained, case, reading=reading)
    written = page(compare(load(paths)))
    texts = Page(written).texts
    assert texts.count("Data that was read") == 1 and "<details open" not in written  # three runs read the same
    assert "own.smi: 447 molecules read, 422 kept as written" in texts
    assert f"Runs: {', '.join(map(str, paths))}" in texts
    cells = [[cell for cell in row if cell.strip()] for row in rows_of(written)]
    assert ["447", "422", "5", "20"] in cells
    examples = "\n".join(f"line {number}: 'C[O-]' -> 'CO'" for number in range(3))
    assert ["charge removed", examples, "4"] in cells and ["no molecule", "line 5: 'xyz'", "20"] in cells
    assert ["molecules", "400", "22"] in cells and ["inert", "10", "0"] in cells
    assert "Splits; random, seed 0; 3 outside of train are in train too" in texts and "delimiter ';'" in texts
    other = replace(reading, source="other.smi")
    write_record(replace(trained, reading=other), tmp_path / "other.json")
    assert page(compare(load([*paths, tmp_path / "other.json"]))).count("Data that was read") == 2
    assert "Data that was read" not in page(compare(load(records(tmp_path, trained, case))))


def test_texts_of_a_reading_stay_text(tmp_path: Path, trained: Record, case: Case) -> None:
    remark = Remark(HOSTILE, 1, [HOSTILE])
    hostile = Reading(HOSTILE, HOSTILE, 2, 1, [remark], [remark], {HOSTILE: 1}, HOSTILE, 1, {HOSTILE: {HOSTILE: 1}})
    hostile.notes = [HOSTILE, "\u202egnp.exe"]
    written = page(compare(load(records(tmp_path, trained, case, reading=hostile)), published=False))
    assert "script" not in [tag for tag, _ in Page(written).tags] and "<script" not in written
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", written) and r"\u202egnp.exe" in written
    assert sum("<script>alert(1)</script>" in text for text in Page(written).texts) == 11


def rows_of(written: str) -> list[list[str]]:
    """Returns the texts of the cells of each row of a page's tables."""
    rows = re.findall("<tr>(.*?)</tr>", written, re.DOTALL)
    return [["".join(Page(cell).texts) for cell in re.findall("<td.*?</td>", row, re.DOTALL)] for row in rows]


def test_groups_beyond_the_colours_are_told_apart(tmp_path: Path, trained: Record, case: Case) -> None:
    for batch in range(1, 17):
        write_record(replace(trained, case=replace(case, batch_size=batch)), tmp_path / f"{batch}" / "result.json")
    comparison = compare(load([tmp_path]), published=False)
    looks = [charts.look(i) for i in range(21)]
    assert len(set(looks)) == 21 and looks[0] != looks[7] and looks[0][0] == looks[7][0]
    drawn = curve_spec(comparison, ["loss"], "samples")
    assert drawn is not None
    lines, _, labels = drawn["layer"]
    assert lines["encoding"]["strokeDash"]["scale"]["range"][::7] == [[1, 0], [6, 3], [2, 2]]
    places = sorted(row["place"] for row in labels["data"]["values"])
    assert all(b - a >= 13 for a, b in pairwise(places))
    written = page(comparison)
    assert re.search('border-bottom-style:dotted">▲</span>batch_size=', written) and written.count("<figure") > 2
    assert "group 1" not in written


def test_runs_on_several_devices_are_drawn_over_those_on_one(tmp_path: Path, trained: Record, case: Case) -> None:
    for devices, rate in ((1, 10_000.0), (2, 19_000.0), (4, 36_000.0)):
        record = replace(
            trained, case=replace(case, trainer=f"1x{devices}"), ranks=devices, steady=Steady(p_train=rate)
        )  # fmt: skip
        write_record(record, tmp_path / str(devices) / "result.json")
    comparison = compare(load([tmp_path]))
    points = [(point.devices, point.efficiency) for point in comparison.scaling if not point.is_published]
    assert points == [(2, 0.95), (4, 0.9)]
    assert {point.source for point in comparison.scaling if point.is_published} > set()
    written = page(comparison)
    assert "Weak scaling: speed-up per device at a fixed batch per device; grey: published rows" in written
    assert "H200 1x4, amp, batch 512 per device: 90.0% on 4 devices" in written
    assert "Scaling" not in page(compare(load([tmp_path / "1"])))


def test_links_lead_to_publications_by_https_alone(tmp_path: Path, trained: Record, case: Case) -> None:
    comparison = compare(load(records(tmp_path, trained, case)))
    [row, *_] = comparison.published
    urls = ["https://x.org/?a=1&b='\"><script>", "http://x.org", "javascript:alert(1)", "data:text/html,x"]
    comparison = replace(comparison, published=[replace(row, url=url) for url in urls])
    links = [attributes["href"] for tag, attributes in Page(page(comparison)).tags if tag == "a"]
    assert links == urls[:1]


def test_the_models_own_pictures_are_embedded_up_to_a_size(tmp_path: Path, trained: Record) -> None:
    png = b"\x89PNG\r\n\x1a\n"
    write_record(trained, tmp_path / "run" / "result.json")
    for name, content in (
        ("parity", png + b"x"),
        ("phases", png),
        ("other", b"<svg>"),
        ("large", png + bytes(400_000)),
    ):
        (tmp_path / "run" / f"{name}.png").write_bytes(content)
    parser = Page(page(compare(load([tmp_path / "run"]))))
    [image] = [attributes for tag, attributes in parser.tags if tag == "img"]
    assert image["src"] == f"data:image/png;base64,{b64encode(png + b'x').decode()}"
    assert image["alt"] == f"parity of moflow, amp, drawn by the run: {tmp_path / 'run' / 'parity.png'}"
    assert any("left out" in text and "large.png" in text for text in parser.texts)


def test_step_times_are_drawn_from_their_percentiles(tmp_path: Path, trained: Record, case: Case) -> None:
    comparison = compare(load(records(tmp_path, trained, case)))
    assert comparison.groups[0].percentiles == {"p50": 0.05, "p90": 0.051, "p99": 0.061}
    assert "batch_size=512: p50 50 ms, p90 51 ms, p99 61 ms" in page(comparison)


@pytest.mark.slow
def test_an_interactive_page_has_one_script_which_its_policy_names(tmp_path: Path, trained: Record, case: Case) -> None:
    hostile = replace(case, model=HOSTILE, precision=HOSTILE)
    history = [{"step": step, "val_</script><script>alert(1)<!--": 1.0, "loss": 1.0 / step} for step in (1, 2, 3)]
    paths = records(tmp_path, trained, hostile, history=history)
    written = page(compare(load(paths), published=False), interactive=True)
    [script] = re.findall(r"<script>(.*?)</script>", written, re.DOTALL)
    assert written.count("<script") == 1 and "<!--" not in script and "val_" in script
    parser = Page(written)
    [policy] = [
        attributes["content"] for tag, attributes in parser.tags if tag == "meta" and "http-equiv" in attributes
    ]
    assert policy is not None
    assert policy.endswith(f"; script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'")
    assert "unsafe-eval" not in policy


def test_the_page_needs_no_network_and_is_the_same_when_built_again(
    tmp_path: Path, trained: Record, case: Case
) -> None:
    comparison = compare(load(records(tmp_path, trained, case)))
    written = page(comparison)
    for tag, attributes in Page(written).tags:
        assert not {"src", "xlink:href"} & set(attributes)
        assert tag == "a" or "href" not in attributes
    assert "url(" not in written and "@import" not in written
    assert "default-src 'none'" in written
    assert page(comparison) == written


def test_the_first_screen_answers_and_all_else_is_folded(tmp_path: Path, trained: Record, case: Case) -> None:
    written = page(compare(load(records(tmp_path, trained, case))))
    before, _, after = written.partition("<details><summary><h2>")
    assert '<p class="answer">' in before and "Comparable: " in before and "<dt>hp.batch_size</dt>" in before
    assert before.count("<figure") == 1 and after.count("<figure") > 3
    outside = re.sub("<details.*?</details>", "", f"<details>{after}", flags=re.DOTALL)
    assert "<table" not in outside and "<figure" not in outside


def test_published_rows_are_three_at_most_of_the_same_case_without_commands(
    tmp_path: Path, trained: Record, case: Case
) -> None:
    comparison = compare(load(records(tmp_path, trained, case)))
    assert 0 < len(comparison.published) <= 3
    assert {(row.precision, row.batch) for row in comparison.published} <= {("amp", "512"), ("amp", "1024")}
    assert all(row.comparable and "benchmarks/" not in row.note for row in comparison.published)
    written = page(comparison)
    assert "report.py published moflow" in written and "Of the same model, number of devices, batch" in written
