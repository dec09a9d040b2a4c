"""The documentation: its links lead somewhere, its commands compose, its Python runs, its figures are on record.

Pages of docs/results and docs/notes are tested with their records: tests/report/test_committed_results.py.
"""

import re
import shlex
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from statistics import fmean, stdev

import pytest
import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf

from src import __version__
from src.config.dashes import as_keys
from src.config.schema import PredictConfig, TrainConfig
from src.config.settings import CONF
from src.report.record import read_record
from tests.support import ROOT
from tests.support.composing import composed

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
PAGES += [page for folder in ("guides", "models", "reference") for page in sorted((DOCS / folder).glob("*.md"))]
HELP = [CONF / f"{name}.yaml" for name in ("train", "predict", "prepare", "export")]
LINK = re.compile(r"\]\(([^()\s]+(?:\([^()]*\))?[^()\s]*)\)")
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECORDS = DOCS / "results" / "records"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """Markdown without fenced blocks, indented blocks and inline code: what they show is no link."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`", "", re.sub(r"^    .*$", "", text, flags=re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives to the page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert not heading or heading in anchors(target), f"{name_of(page)} links to {link}"


@pytest.mark.parametrize("page", sorted((DOCS / "models").glob("*.md")), ids=name_of)
def test_names_beside_the_equations_exist_in_the_files_that_they_link_to(page: Path) -> None:
    """The table of a model's page: a link is [`Class.method`](../../src/PATH.py)."""
    section = re.findall(r"^## The papers?'s? equations\n(.*?)^## ", page.read_text(), re.MULTILINE | re.DOTALL)[0]
    named = re.findall(r"\[`([\w.]+)`\]\(\.\./\.\./(src/[\w/]+)\.py\)", section)
    assert len(named) == section.count("](../../") >= 6
    for name, path in named:
        owner = resolve_name(f"{path.replace('/', '.')}:{name.partition('.')[0]}")
        method = name.partition(".")[2]
        assert not method or method in vars(owner), f"{name_of(page)}: {path}.py has no {name}"
        defined = getattr(owner, "__module__", path.replace("/", "."))
        assert defined == path.replace("/", "."), f"{name_of(page)}: {name} is of {defined}, not {path}.py"


def test_every_page_is_linked() -> None:
    """From the README, over any number of pages."""
    seen, new = set(), {ROOT / "README.md"}
    while new:
        seen |= new
        links = {(page, link.partition("#")[0]) for page in new for link in LINK.findall(page.read_text())}
        new = {(page.parent / path).resolve() for page, path in links if path.endswith(".md")}
        new = {page for page in new if page.exists()} - seen
    assert len(PAGES) > 20
    assert [name_of(page) for page in PAGES if page not in seen] == []


def test_pages_that_code_and_configs_name_exist() -> None:
    sources = [ROOT / "pyproject.toml", ROOT / "Makefile"]
    sources += [file for folder in ("src", "conf", "benchmarks") for file in (ROOT / folder).rglob("*")]
    files = [file for file in sources if file.suffix in (".py", ".yaml", ".toml", "") and file.is_file()]
    named = {
        (file, page) for file in files for page in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 8
    assert [f"{name_of(file)} names {page}" for file, page in sorted(named) if not (ROOT / page).exists()] == []


def commands(page: Path) -> list[list[str]]:
    """Returns the words of the page's commands `python train.py ...` and of other entry points, without comments."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^ +(?:.*\| )?\S*python ((?:train|predict|prepare|export)\.py.*)$", text, flags=re.MULTILINE)
    return [as_keys(shlex.split(line, comments=True), ["to"]) for line in lines]


def one_job(words: list[str]) -> list[str]:
    """Returns the overrides of the first job: of a sweep's values the first, without what is Hydra's own."""
    overrides = [word for word in words[1:] if re.match(r"[+~]?(?!hydra)[\w.]+(=|$)", word) and "tag(" not in word]
    overrides = [word for word in overrides if word not in ("job", "install=bash")]
    if "-m" not in words:
        return overrides
    return [word if "[" in word or "{" in word else word.partition(",")[0] for word in overrides]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[] if page.name == "README.md" else [pytest.mark.slow])
        for page in (*PAGES, *HELP)
        if commands(page)
    ],
)
def test_commands_compose(page: Path) -> None:
    """So every key and option in them exists, in the examples of --help too."""
    trained: list[str] = []
    for words in commands(page):
        if "model=small_resnet" in words:
            continue  # tests/test_add_a_model.py runs it
        if words[0] == "train.py":
            trained = [word for word in words if word.startswith(("model=", "datamodule="))]
            experiments = [word for word in words if word.startswith("experiment=") and "," not in word]
            if experiments and "-m" not in words:
                trained = [f"model={composed('train', *experiments).model.name}", *trained]
        named = trained if words[0] == "predict.py" and not any(word.startswith("model=") for word in words) else []
        composed(words[0].removesuffix(".py"), *named, *one_job(words))  # a checkpoint names its model and data


def test_the_commands_were_found() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 75
    assert all(len(commands(page)) >= 3 for page in HELP)


def configs(group: str) -> list[DictConfig | ListConfig]:
    """Returns what the files of a group say, each under the group's key; experiments as they are."""
    loaded = [OmegaConf.load(file) for file in sorted((CONF / group).glob("*.yaml"))]
    return loaded if group == "experiment" else [OmegaConf.create({group: config}) for config in loaded]


def test_keys_that_pages_name_exist() -> None:
    """A key may be of any option of its group. Most stand in the tables of the original parameters."""
    all_configs = [OmegaConf.structured(schema) for schema in (TrainConfig, PredictConfig)]
    all_configs += [
        config for group in ("model", "datamodule", "callbacks", "logger", "experiment") for config in configs(group)
    ]
    key = re.compile(
        r"(?<![+/\w.])(?:fit|hp|execution|measure|sweep|model|datamodule|callbacks|logger)(?!\.(?:safetensors|pt2|onnx))(?:\.\w+)+(?![\w.(/])"
    )
    named = {
        (page, name)
        for page in PAGES
        if page.name != "config.md"  # generated, with interpolations of keys that may be absent
        for code in re.findall(r"`([^`\n]+)`", page.read_text())
        for name in key.findall(code)
    }
    assert len(named) > 110

    def exists(name: str) -> bool:
        parent, _, last = name.rpartition(".")
        return any(last in (OmegaConf.select(config, parent) or {}) for config in all_configs)

    assert sorted(f"{name_of(page)}: {name}" for page, name in named if not exists(name)) == []


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text()], ids=name_of)
@pytest.mark.slow
def test_python_in_the_documentation_runs(page: Path) -> None:
    if page.name == "library.md":
        return  # tests/library/test_wheel.py runs it, with the installed library
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(compile(block, name_of(page), "exec"), {})


@pytest.mark.parametrize("model", ["moflow", "se3_transformer", "dlrm", "distilbert", "mobilenet_v1"])
def test_each_model_is_used_as_a_library_in_a_script_of_at_most_20_lines(model: str) -> None:
    """`test_python_in_the_documentation_runs` runs it."""
    page = (DOCS / "models" / f"{model}.md").read_text(encoding="utf-8")
    script = page.partition("## As a library\n\n```python\n")[2].partition("```")[0]
    assert 3 <= len(script.splitlines()) <= 20
    assert f"from src.models.{model} import" in script


def test_a_checkout_installs_no_package_that_others_have_too() -> None:
    """A wheel has the package reprise: tests/library/test_wheel.py."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"] == {"packages": []}  # a package named src would be everyone's
    assert project["project"]["version"] == __version__


@pytest.mark.parametrize(
    ("record", "metric", "text"),
    [
        ("moflow_published_3", "nuv", "67.9"),
        ("se3_transformer_training_amp", "homo_mae_ev", "0.0296"),
        ("se3_transformer_training_amp", "test_homo_mae_ev", "0.0299"),
        ("dlrm_teacher_16384_amp", "auc", "0.7997"),
        ("mobilenet_v1_cifar10", "top1", "0.9319"),
    ],
)
def test_figures_of_the_readme_are_those_of_their_records(record: str, metric: str, text: str) -> None:
    value = [row[metric] for row in read_record(RECORDS / f"{record}.json").history if metric in row][-1]
    decimals = len(text.partition(".")[2])
    assert f"{value:,.{decimals}f}" == text
    assert re.search(rf"[| ]{re.escape(text)}[, %]", README)


def test_the_readme_prints_both_uniquenesses_and_fcd_of_each_moflow_row() -> None:
    """With the standard deviation over the runs, and the temperature of the samples."""
    for pattern, temperature in (("moflow_published_*", "0.3"), ("moflow_quality_?", "0.9")):
        runs = [read_record(file) for file in RECORDS.glob(f"{pattern}.json")]
        (line,) = (line for line in README.splitlines() if f"{temperature}: NUV" in line)
        for metric in ("nuv", "pool_nuv"):
            values = [[row[metric] for row in run.history if metric in row][-1] for run in runs]
            assert f"{fmean(values):.1f} ± {stdev(values):.1f}%" in line, (pattern, metric)
        assert "FCD" in line and {run.config["model"]["task"]["temperature"] for run in runs} == {float(temperature)}


@pytest.mark.parametrize(
    "record",
    ["se3_transformer_training_amp", "dlrm_teacher_16384_amp", "mobilenet_v1_cifar10"],
)
def test_times_and_memory_of_the_readme_are_those_of_their_records(record: str) -> None:
    result = read_record(RECORDS / f"{record}.json")
    assert result.mem and result.mem.peak_reserved_gib and result.e2e_time_s
    assert f"| {result.e2e_time_s:,.0f} s | {result.mem.peak_reserved_gib:.1f} GiB |" in README


def test_the_citation_names_the_papers_of_the_five_models() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == "Apache-2.0" and "Apache License" in (ROOT / "LICENSE").read_text()
    titles = " ".join(reference["title"] for reference in citation["references"])
    assert len(citation["references"]) == 5
    assert all(
        name in titles for name in ("MoFlow", "SE(3)-Transformers", "DistilBERT", "Recommendation", "MobileNets")
    )
