"""Pages made of templates: their figures, and the mistakes in them."""

import re
import shutil
from pathlib import Path

import pytest

from src.errors import UserError
from src.report.figures import Figure, Figures
from src.report.pages import made_pages
from src.report.record import read_record
from src.report.scaling import commit_of
from tests.support import ROOT

TEMPLATES = ROOT / "docs" / "templates"


def made(tmp_path: Path, text: str, page: str = "docs/results/one.md") -> str:
    """Returns the page that a template makes beside the records and comparisons of this repository."""
    results, file = tmp_path / "docs" / "results", tmp_path / "docs" / "templates" / f"{page}.jinja"
    if not results.exists():
        for folder in ("records", "beside"):
            shutil.copytree(ROOT / "docs" / "results" / folder, results / folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return made_pages(results)[tmp_path / page].split("\n\n", 1)[1]


@pytest.mark.parametrize(
    ("call", "printed"),
    [
        ('rate("moflow_weak_512_amp_x1")', "29,057"),
        ('millions(rate("dlrm_train_65536_amp"))', "17.3"),
        ('rate("se3_transformer_predict_400_amp")', "158,253"),
        ('whole("dlrm_disk_65536_amp") | string | length', "10"),
        ('quality("mobilenet_v1_cifar10")', "0.9319"),
        ('metric("dlrm_teacher_16384_amp", "bayes_auc")', "0.8008"),
        ('seconds("se3_transformer_training_amp", "compute")', "262"),
        ('minutes("mobilenet_v1_cifar10")', "9.0"),
        ('percent(quality("mobilenet_v1_cifar10"))', "93.19%"),
        ('efficiency("moflow_weak_512_amp_x4", 4)', "93.9"),
        ('latency_ms("dlrm_predict_amp_graph_on_64")', "0.11"),
        ('printed("examples/quickstart").partition(",")[0]', "train done: moflow on zinc250k"),
        ('over_one("moflow_weak_512_amp_x4")', "109,182 (3.76x)"),
        ('linked(over_one("moflow_weak_512_amp_x4"))', "[109,182](records/moflow_weak_512_amp_x4.json) 3.76x"),
        ('row("case", rate("moflow_weak_512_amp_x1"), "", 7)',
         "| case | 29,057 | [2b4566b](records/moflow_weak_512_amp_x1.json) | | 7 |"),
        ('published("moflow", batch_size=3584, precision="amp")', "6,387 (6,320 corrected)"),
        ('published_speed_up("dlrm", 262144, "A100-40G 1x8", "amp")', "2.01x (A100 40GB, AMP, batch 262,144)"),
        ('published_row(published("distilbert", trainer="1x8", batch_size=96)).partition(" | [")[0]',
         "| train, batch 96 each, TF32 (printed as fp32) | 8 x A100 40GB | 2,181 (2,173 corrected)"),
        ('published_row(published("dlrm", trainer="1x8", precision="tf32", name="throughput")).partition(" | 1")[0]',
         "| train, batch 65,536 in all, TF32, FL3 | 8 x A100 80GB"),
        ('with_gpu(published("distilbert", batch_size=96))', "288 (288 corrected) (A100 40GB, printed as fp32)"),
        ('row_in_turn("case", "moflow", "train_512_amp", published("moflow", batch_size=512, precision="amp",'
         ' hardware="a100_80g"))',
         "| case | 28,886 | 8,635 | 3.35 (3.34 to 3.93) | 2.86 to 3.43 (4) | "
         "[2b4566b](beside/moflow_train_512_amp.json) | 4,524 |"),
        ('span(speed_ups("generate", model="moflow"))', "7.79 to 12.85"),
        ('speed_ups("train") | length ~ " cases, median " ~ median(speed_ups("train"))', "26 cases, median 1.84"),
        ('theirs("dlrm", "train_65536_tf32") ~ " on " ~ timed_on()', "5,146,104 on H100"),
        ('spread(each(quality, "distilbert_minilm_seed_*"))', "0.9067 ± 0.0059"),
        ('metric("se3_transformer_lumo_1", "test_lumo_mae_ev", ".1f", 1000)', "24.3"),
        ('judged("moflow_temperatures_published_1", "fcd", "at 0.7")', "26.6"),
        ('gpus("moflow_published_1") ~ ", " ~ gpus("moflow_weak_512_amp_x1")', "2 x H100, H100"),
        ('gpus("mobilenet_v1_cifar10", "moflow_train_512_amp")', "H100"),
        ('millions(published("dlrm", trainer="1x8", batch_size=2097152))', "145 (9.07 corrected)"),
        ('millions(rate("dlrm_predict_fp16_graph_on_32768"))', "51.3"),
        ('paper("qm9", "Cormorant", "homo, meV")', "34"),
        ('mean(each(quality, "distilbert_minilm_seed_*"))', "0.9067"),
        ('spread(each(metric, "se3_transformer_homo_?", "test_homo_mae_ev", ".1f", 1000))', "20.9 ± 0.5"),
    ],
)  # fmt: skip
def test_a_call_prints_its_figure(tmp_path: Path, call: str, printed: str) -> None:
    """The figures are those that the pages had when they were written by hand."""
    assert made(tmp_path, f"{{{{ {call} }}}}\n") == printed + "\n"


def test_a_link_leads_from_its_page_to_the_record(tmp_path: Path) -> None:
    for page in ("README.md", "docs/results/one.md", "docs/guides/deep/two.md"):
        target = re.findall(r"\((.*)\)", made(tmp_path, '{{ commit("moflow_weak_512_amp_x1") }}\n', page))[0]
        assert (tmp_path / page).parent.joinpath(target).resolve() == (
            tmp_path / "docs" / "results" / "records" / "moflow_weak_512_amp_x1.json"
        ), page


def test_a_corrected_figure_compares_by_its_correction() -> None:
    ours, theirs = Figure(300.0), Figure(200.0, corrected=100.0)
    figures = Figures(ROOT / "docs" / "results", Path("README.md"))
    assert str(theirs) == "200 (100 corrected)"
    assert figures.least([ours, theirs]) is theirs and figures.greatest([ours, theirs]) is ours


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\n{{ rate('moflow_weak_512_amp_x9') }}\n", "line 2: .*moflow_weak_512_amp_x9.json .No such file"),
        ("{{ rates('moflow_weak_512_amp_x1') }}\n", "line 1: 'rates' is undefined"),
        ("{{ rate( }}\n", "line 1: unexpected"),
        ("\n\n{{ rate() }}\n", "line 3: .*missing .*argument"),
        ("{{ exposed_ms('moflow_weak_512_amp_x1') }}\n", "line 1: .*_amp_x1.json: does not have this figure"),
        ("{{ gpus('moflow_published_1', 'moflow_train_512_amp') }}\n", "line 1: .*_512_amp: of 2 kinds or numbers"),
        ("{{ gpus('mobilenet_sweep/00') }}\n", "line 1: .*mobilenet_sweep/00: of 0 kinds or numbers of GPUs"),
        ("{{ paper('qm9', 'Cormorant', 'homo') }}\n", "line 1: .*qm9.yaml has 0 cells of 'Cormorant' under 'homo'"),
        ("{{ paper('qm', 'Cormorant', 'homo') }}\n", "line 1: no table 'qm'; there are "),
        ("{{ judged('moflow_train_512_amp', 'fcd', 'drawn') }}\n", "line 1: .*does not have this figure"),
        ("{{ published('moflow', batch_size=512) }}\n", "line 1: [0-9]+ published rows have .*one is needed: "),
        ("{{ published('moflow', batch_size=7) }}\n", "line 1: 0 published rows have .*batch_size=7"),
        ("{{ row('case', rate('mobilenet_v1_train_64_fp32'), published('mobilenet_v1', batch_size=128)) }}\n",
         "line 1: .*64_fp32 is of 1 GPUs, batch 64 each, fp32, but .* of 1 GPUs, batch 128 each, fp32: print"),
        ("{{ row('case', rate('distilbert_padded_96_fp32'), '', published('distilbert', batch_size=96)) }}\n",
         "line 1: .*96_fp32 is of 1 GPUs, batch 96 each, fp32, but .* of 1 GPUs, batch 96 each, tf32: print"),
        ("{{ row_in_turn('case', 'distilbert', 'train_padded_96_fp32', published('distilbert', batch_size=96)) }}\n",
         "line 1: distilbert train_padded_96_fp32 is of 1 GPUs, batch 96 each, fp32, but .* each, tf32: print"),
        ("{{ speed_up('moflow_weak_512_amp_x4', 'moflow_train_512_amp') }}\n",
         "line 1: moflow_weak_512_amp_x4 is of machine aa3b630e, .*_train_512_amp of 99e5c08d: measure both in one"),
        ("{{ speed_up('dlrm_weak_65536_x2', 'dlrm_predict_fp16_graph_on_64') }}\n",
         "line 1: dlrm_weak_65536_x2 is of commit 2b4566[0-9a-f]+, .*_fp16_graph_on_64 of 85c19d[0-9a-f]+: "),
        ("{{ published_row(rate('moflow_weak_512_amp_x1')) }}\n", "line 1: this is not a published figure"),
        ("{{ published('moflow', batch=7) }}\n", "line 1: .*has no attribute 'batch'"),
        ("{{ row_in_turn('case', 'moflow', 'train_7_amp') }}\n", "line 1: .* no moflow train_7_amp with a ratio: "),
        ("{{ speed_ups('predict', model='moflow') }}\n", "line 1: .*has no case of moflow to predict: measure one"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_template_is_one_line_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=f"one.md.jinja: {words}"):
        made(tmp_path, text)


def test_no_figure_stands_in_a_template_table_itself() -> None:
    """Cells that begin with a number come of records and published rows; counts of samples may be in words."""
    for file in sorted(TEMPLATES.rglob("*.jinja")):
        for line in file.read_text(encoding="utf-8").splitlines():
            texts = re.sub(r"{{.*?}}", "", line).split("|") if line.startswith("|") else []
            texts += re.findall(r"'([^']*)'", line) if "row" in line else []
            assert not [text for text in texts if re.match(r"\s*\d[\d,.]*( s| GiB| eV| ms|x|%)?\s*($|\()", text)], (
                file.name,
                line,
            )


def test_a_published_rate_of_a_template_row_is_compared_with_its_record() -> None:
    """`row` compares figures; text joined to one would make it a text."""
    lines = [line for file in TEMPLATES.rglob("*.jinja") for line in file.read_text(encoding="utf-8").splitlines()]
    rows = [line for line in lines if re.match(r"{{ row\(.*published\(", line) and "quality(" not in line]
    assert len(rows) > 10 and not [line for line in rows if "~" in line.partition("published(")[2]]


def test_a_table_row_names_the_record_of_its_figure() -> None:
    """So that a table of several commits says in each row which one; scaling.md names them above its table."""
    figures = re.compile(r"\b(rate|whole|quality|seconds|gib|latency_ms|over_one|exposed_ms)\(")
    for file in sorted(TEMPLATES.rglob("*.jinja")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("|") and figures.search(line):
                assert re.search(r"\b(commit|shown)\(", line), (file.name, line)


def test_the_runs_of_scaling_are_of_the_commit_which_the_page_names() -> None:
    page = (ROOT / "docs" / "results" / "scaling.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"Commit\s([0-9a-f]{7})\.", page)
    lines = [line for line in page.splitlines() if "](records/" in line]
    assert len(lines) == 12
    for line in lines:
        runs = [read_record(ROOT / "docs" / "results" / name) for name in re.findall(r"\((records/.*?)\)", line)]
        assert len(runs) == 3 and {str(commit_of(run))[:7] for run in runs} == {named}, line
