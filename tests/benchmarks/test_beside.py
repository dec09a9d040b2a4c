"""Ours and peers in turn: the order, the ratios, what is written, a side that fails, and ours through train.py."""

import csv
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
import yaml

from benchmarks.beside import collect
from benchmarks.beside.__main__ import main, parsed
from benchmarks.beside.cases import CASES, Case, Peer
from benchmarks.beside.link import HANDLE, Link
from benchmarks.beside.ours import CALLBACK
from benchmarks.beside.peer import main as serve
from benchmarks.beside.peers import graph_operations
from benchmarks.beside.results import write_case, write_page
from benchmarks.beside.rounds import attempt, order
from benchmarks.beside.sides import OURS, Side, SideFailedError, Wanted, our_command, peer_command, start
from src.errors import UserError
from src.published.tables import read
from src.report.docs import write_docs
from src.report.figures import Figures
from src.report.in_turn import Ratio, ratio_of, read_comparison, typed
from src.report.record import digest
from src.training.prediction import TimedBatches
from tests.support import ROOT
from tests.support.composing import composed
from tests.support.refusing import Command
from tests.support.tiny_mobilenet import tiny_mobilenet

CASE = CASES["mobilenet_v1"][0]
GPU = {"sm_mhz": {"min": 1900, "mean": 1950, "max": 1980}, "celsius": {"min": 40, "mean": 41, "max": 42},
       "power_w": None, "throttled": ["power cap"]}  # fmt: skip


def test_every_side_has_its_turn_in_each_round_and_each_place() -> None:
    rounds = [order(3, number) for number in range(3)]
    assert all(sorted(sides) == [0, 1, 2] for sides in rounds)
    assert [sorted(places) for places in zip(*rounds, strict=True)] == [[0, 1, 2]] * 3


def test_the_ratio_is_the_median_of_the_rounds_with_their_range() -> None:
    """A disturbed turn, here the fourth, moves the greatest and not the median."""
    ratio = ratio_of([30.0, 30.0, 30.0, 30.0, 30.3], [10.0, 10.1, 9.9, 5.0, 10.0])
    assert (ratio.median, ratio.least, ratio.greatest) == pytest.approx((3.03, 30 / 10.1, 6.0))
    assert ratio_of([3.0], [1.0]) == Ratio(3.0, 3.0, 3.0)


def test_rates_and_ratios_are_those_of_the_turns_whatever_a_file_says(tmp_path: Path) -> None:
    file = results(tmp_path) / CASE.name / "beside.json"
    content = json.loads(file.read_text())
    written = {"median": 9.0, "least": 9.0, "greatest": 9.0}
    content["sides"][1] |= {"throughput": 7.0, "ours_over_it": written, "throughputs": [100.0, 50.0, 101.0]}
    file.write_text(json.dumps(content))
    ours, theirs = read_comparison(file).sides
    assert (ours.throughput, theirs.throughput, ours.ours_over_it) == (305.0, 100.0, None)
    assert theirs.ours_over_it == Ratio(305 / 101, 3.0, 310 / 50)


def test_committed_comparisons_hold_the_rates_and_ratios_of_their_turns() -> None:
    files = sorted(collect.RESULTS.glob("*.json"))
    assert len(files) == 38
    for file in files:
        assert typed(json.loads(file.read_text())) == read_comparison(file), file.name


def test_the_quotient_of_two_printed_rates_is_within_the_range_of_the_rounds() -> None:
    """So a reader who divides them finds the ratio's own range."""
    for file in sorted(collect.RESULTS.glob("*.json")):
        ours, *peers = read_comparison(file).sides
        for peer in peers:
            if ours.throughput and peer.throughput and peer.ours_over_it:
                quotient = ours.throughput / peer.throughput
                assert peer.ours_over_it.least <= quotient <= peer.ours_over_it.greatest, file.name


@pytest.mark.parametrize("model", CASES)
def test_cases_have_names_of_their_own_and_peers_that_are_there(model: str) -> None:
    names = [case.name for case in CASES[model]]
    assert len(set(names)) == len(names)
    for case in CASES[model]:
        assert any(option.endswith(f"batch_size={case.batch_size}") for option in case.command(tiny=False))
        for peer in case.peers:
            assert callable(resolve_name(f"benchmarks.beside.peers.{peer.prepare}"))


def wanted(out: Path, **changes: Any) -> Wanted:
    return replace(Wanted(out, 3, 1.0, None, False, None, [], 60.0), **changes)


def finished(name: str, rates: list[float], **about: Any) -> Side:
    """Returns a side as it is after its rounds."""
    process: Any = None
    rounds = [
        {"steps": 10, "samples": int(10 * rate), "seconds": 10.0, "step_s": 1.0, "throughput": rate, "gpu": GPU}
        for rate in rates
    ]
    return Side(name, ["python", "x.py"], Path("log"), process, process, {"includes": "all", **about}, rounds)


def test_results_have_a_record_of_each_side_and_the_ratios(tmp_path: Path) -> None:
    failed = replace(finished("timm, eager", []), error="no GPU")
    sides = [finished(OURS, [300.0, 310.0]), finished("timm, graph", [100.0, 102.0], versions={"timm": "1"}), failed]
    comparison = write_case(CASE, sides, wanted(tmp_path))
    folder = tmp_path / CASE.name
    record = json.loads((folder / "side_1.json").read_text())
    assert record["throughput"] == 101 and len(record["rounds"]) == 2 and record["versions"] == {"timm": "1"}
    assert {"command", "git", "libraries"} <= set(record["environment"]) and record["gpu"]["celsius"]["max"] == 42
    ratio = json.loads((folder / "beside.json").read_text())["sides"][1]["ours_over_it"]
    assert ratio == pytest.approx({"median": (3 + 310 / 102) / 2, "least": 3.0, "greatest": 310 / 102})
    text = write_page(tmp_path, "mobilenet_v1", [comparison]).read_text()
    assert "| 101 images |" in text and "failed: no GPU" in text and "1900 to 1980" in text
    assert comparison.sides[1].versions == {"timm": "1"} and comparison.sides[1].command == "python x.py"
    assert json.loads((folder / "side_2.json").read_text())["status"] == "failed"


def test_a_peer_of_a_clone_that_is_not_named_is_left_out_and_said_to(tmp_path: Path) -> None:
    case = next(case for case in CASES["moflow"] if len(case.peers) == 3)
    comparison = write_case(case, [finished(OURS, [300.0] * 3)], wanted(tmp_path))
    assert [side.status for side in comparison.sides] == ["done", "left out", "left out", "left out"]
    text = write_page(tmp_path, "moflow", [comparison]).read_text()
    assert text.count("left out: it needs --reference PATH") == 3
    named = write_case(case, [finished(OURS, [300.0] * 3)], wanted(tmp_path, reference=tmp_path))
    assert len(named.sides) == 1


def test_results_have_a_folder_of_their_own_unless_one_is_given() -> None:
    assert parsed(["dlrm"]).out == Path("outputs/beside/dlrm") and parsed(["dlrm", "--out", "x"]).out == Path("x")


def test_a_side_that_ends_is_said_to_in_one_line(tmp_path: Path) -> None:
    side = start(
        "broken", [sys.executable, "-c", "print('first'); raise SystemExit('no such thing')"], tmp_path / "log"
    )
    lines: list[str] = []
    assert attempt(side, lines.append, lambda: side.ask(None, "ready", 30)) is None
    assert side.error and "exit code 1" in side.error and "no such thing" in side.error
    assert len(lines) == 1 and "broken: failed" in lines[0] and side.process.poll() == 1


def test_a_side_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    side = start("slow", [sys.executable, "-c", "import signal; signal.pause()"], tmp_path / "log")
    with pytest.raises(SideFailedError, match="no answer"):
        side.ask(None, "ready", 0.1)
    side.error = "no answer"
    side.process.terminate()
    side.end()
    assert side.process.poll() is not None


def test_a_turn_is_as_many_steps_as_asked_for() -> None:
    here, there = socket.socketpair()
    parent, link = Connection(here.detach()), Link(there.detach())
    parent.send({"steps": 3})
    assert link.begin(samples=10)
    assert [link.step(10 + 4 * done) for done in (1, 2, 3)] == [False, False, True]
    answer = parent.recv()
    assert (answer["steps"], answer["samples"]) == (3, 12) and 0 < answer["step_s"] <= answer["seconds"]
    parent.send({})
    assert not link.begin(22) and "mem" in parent.recv()["ended"]
    parent.close()
    link.connection.close()


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """The other end of the connection of a side in this process."""
    here, there = socket.socketpair()
    monkeypatch.setenv(HANDLE, str(there.detach()))
    with Connection(here.detach()) as parent:
        yield parent


def answers(parent: Connection) -> tuple[Any, ...]:
    """Returns what a side that has ended said at its start, after two turns, and at its end."""
    said = [parent.recv() for _ in range(4) if parent.poll()]  # a side that has ended says nothing more
    assert len(said) == 4, said
    ready, *turns, ended = said
    return ready["ready"], turns, ended["ended"]


@pytest.mark.slow
def test_ours_trains_in_turns(tmp_path: Path, parent: Connection) -> None:
    from src.run import train

    for message in ({"steps": 2}, {"steps": 5}, {}):  # an epoch has 8 steps, so none ends with a turn
        parent.send(message)
    options = "fit.max_epochs=100", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false", CALLBACK
    record = train(tiny_mobilenet(tmp_path, *options))
    ready, turns, _ = answers(parent)
    assert "loading" in ready["includes"]
    assert [(turn["steps"], turn["samples"]) for turn in turns] == [(2, 16), (5, 40)]
    assert record.status == "done" and record.samples == 56


def tiny(model: str, name: str) -> Case:
    return next(case for case in CASES[model] if case.name == name).rehearsed()


@pytest.mark.slow
def test_ours_predicts_in_turns(
    tmp_path: Path, parent: Connection, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedBatches, "over", TimedBatches.over)  # which the side replaces
    for message in ({"steps": 2}, {"steps": 1}, {}):
        parent.send(message)
    few = wanted(tmp_path, tiny=True, options=["num_samples=80"])  # which end a side that misses the end of its turn
    words = our_command(tiny("moflow", "generate_512_amp"), few, tmp_path)
    assert words[1:3] == ["-m", "benchmarks.beside.ours"]
    assert command("benchmarks/beside/ours.py", *words[3:]).code == 0
    ready, turns, _ = answers(parent)
    assert "result" in ready["includes"] and [turn["samples"] for turn in turns] == [16, 8]


@pytest.mark.slow
def test_the_command_measures_ours_and_a_peer_and_says_which_peer_failed(tmp_path: Path) -> None:
    case, packed_and_varlen = "train_packed_96_bf16", "*, [pv]a[cr][kl]e[dn]"
    words = [sys.executable, "-m", "benchmarks.beside", "distilbert", case, "--tiny", "--steps", "2", "--rounds", "2",
             "--peers", packed_and_varlen, "--out", str(tmp_path)]  # fmt: skip
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{OURS}: ready" in ended.stdout
    content = json.loads((tmp_path / case / "beside.json").read_text())
    ours, packed, varlen = content["sides"]
    assert ours["throughput"] > 0 and (tmp_path / case / "ours/result.json").exists(), ended.stderr
    assert content["tiny"] and content["case"]["precision"] == "fp32"
    assert packed["status"] == "done" and packed["ours_over_it"]["median"] > 0 and len(packed["throughputs"]) == 2
    assert packed["final_loss"] != "not finite" and packed["includes"]
    if find_spec("flash_attn") is None:
        assert "FlashAttention2" in varlen["error"] and "varlen: failed" in ended.stdout


def test_without_a_ratio_the_exit_code_is_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.beside.rounds.run_case", lambda *_: [finished(OURS, [300.0] * 3)])
    assert main(["mobilenet_v1", CASE.name, "--peers", "none", "--out", str(tmp_path)]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "name", "peer"),
    [
        ("distilbert", "train_full_96_fp32", "Hugging Face DistilBERT, sdpa"),
        ("dlrm", "train_65536_amp", "TorchRec with FBGEMM, eager"),
        ("se3_transformer", "convolution_8960_tf32", "e3nn"),
        ("se3_transformer", "convolution_8960_tf32", OURS),
    ],
)
def test_sides_that_are_installed_run(model: str, name: str, peer: str, tmp_path: Path, parent: Connection) -> None:
    case, asked = tiny(model, name), wanted(tmp_path, tiny=True)
    for message in ({"steps": 2}, {"steps": 1}, {}):
        parent.send(message)
    words = next((peer_command(case, other, asked) for other in case.peers if other.name == peer), None)
    *_, description = words or our_command(case, asked, tmp_path)
    serve(description)
    ready, turns, ended = answers(parent)
    assert ready["includes"] and [turn["samples"] for turn in turns] == [16, 8]
    assert ended["final_loss"] != "not finite"


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), [("distilbert", "train_full_96_fp32"), ("dlrm", "train_65536_amp")])
def test_ours_is_a_command(model: str, name: str, tmp_path: Path) -> None:
    from src.run import train

    *words, _ = our_command(tiny(model, name), wanted(tmp_path, tiny=True), tmp_path)
    assert train(composed("train", *words[2:], "fit.max_steps=1")).status == "done"


def test_the_operations_in_place_of_dgl_agree_with_sums_over_edges() -> None:
    torch.manual_seed(0)
    dst = torch.tensor([0, 0, 2, 2, 2, 4])
    graph = graph_operations.DGLGraph(dst.flip(0), dst, torch.tensor([3, 2]))
    edges = torch.randn(6, 3, 4, dtype=torch.float64, requires_grad=True)
    nodes = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
    expected = torch.zeros(5, 3, 4, dtype=torch.float64).index_add(0, dst, edges)
    torch.testing.assert_close(graph_operations.copy_e_sum(graph, edges), expected)
    torch.testing.assert_close(
        graph_operations.e_dot_v(graph, edges, nodes), (edges * nodes[dst]).sum(-1, keepdim=True)
    )
    softmax = graph_operations.edge_softmax(graph, edges)
    torch.testing.assert_close(softmax[2:5], edges[2:5].softmax(0))
    pooled = graph_operations.MaxPooling()(graph, nodes)
    torch.testing.assert_close(pooled, torch.stack([nodes[:3].amax(0), nodes[3:].amax(0)]))
    for function in (graph_operations.copy_e_sum, graph_operations.edge_softmax):
        assert torch.autograd.gradcheck(lambda values, f=function: f(graph, values), (edges,))
    assert torch.autograd.gradcheck(lambda *both: graph_operations.e_dot_v(graph, *both), (edges, nodes))


def results(out: Path, of_peer: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Writes results of timm beside ours, as of an H200 and a clean commit, with other values of the peer or all."""
    case = replace(CASE, peers=(Peer("timm mobilenetv1_100, graph", ""),))
    peer = finished("timm mobilenetv1_100, graph", [100.0, 102.0, 101.0], versions={"torch": "2", "timm": "1.0"})
    content = asdict(write_case(case, [finished(OURS, [300.0, 310.0, 305.0]), peer], wanted(out)))
    content |= {"gpus": ["NVIDIA H200"], "git": {"commit": "a" * 40, "dirty": False, "digest": "d"}} | changes
    content["sides"][1] |= of_peer or {}
    content["digest"] = digest(content)
    (out / case.name / "beside.json").write_text(json.dumps(content))
    return out


def test_collecting_replaces_the_rows_of_the_measured_models_alone(tmp_path: Path) -> None:
    file = tmp_path / "reference.yaml"
    file.write_text(collect.FILE.read_text())
    before = [row for row in read(file) if row.model != "mobilenet_v1"]
    kept, gone = (tmp_path / "results" / name for name in ("dlrm_a.json", "mobilenet_v1_old.json"))
    kept.parent.mkdir()
    for path in (kept, gone):
        path.write_text("{}")
    collect.main([str(results(tmp_path / "out", gpus=["NVIDIA H100 80GB HBM3"]))], file, tmp_path / "results")
    assert sorted(path.name for path in kept.parent.iterdir()) == [kept.name, f"mobilenet_v1_{CASE.name}.json"]
    rows = read(file)
    assert [row for row in rows if row.model != "mobilenet_v1"] == before
    (row,) = (row for row in rows if row.model == "mobilenet_v1")
    assert (row.throughput, row.batch_size, row.precision, row.measured) == (101.0, 64, "amp", True)
    assert row.hardware == "h100_80g"
    assert "ours 3.02 times as fast" in row.note and row.command.startswith("python -m benchmarks.beside")
    assert "commit aaaaaaa" in row.environment and "torch 2, timm 1.0" in row.environment
    assert yaml.safe_load(file.read_text())["tables"][-1]["source"] == "measured reference: timm mobilenetv1_100"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"tiny": True}, "rehearsal"), ({"gpus": []}, "a CPU"),
     ({"git": {"commit": "a", "dirty": True, "digest": "d"}}, "changed or unknown code"),
     ({"rounds": 2}, "of 2 rounds"), ({"gpus": ["NVIDIA H200", "NVIDIA H100"]}, "measured on NVIDIA H100, NVIDIA H200"),
     ({"gpus": ["NVIDIA T4"]}, "measured on NVIDIA T4; rows may be of one of .*h200"),
     ({"of_peer": {"final_loss": "not finite"}}, "loss of timm .* was not finite"),
     ({"of_peer": {"reference": {"commit": None}}}, "check out commit 729963d")],
)  # fmt: skip
def test_collecting_refuses_what_no_row_may_come_from(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        collect.main([str(results(tmp_path, **change))], tmp_path / "reference.yaml", tmp_path / "results")
    assert not (tmp_path / "reference.yaml").exists() and not (tmp_path / "results").exists()


def test_collecting_refuses_results_of_several_commits(tmp_path: Path) -> None:
    results(tmp_path / "one")
    results(tmp_path / "two", git={"commit": "b" * 40, "dirty": False, "digest": "d"})
    with pytest.raises(UserError, match="of commits aaaaaaa, bbbbbbb"):
        collect.main([str(tmp_path)], tmp_path / "reference.yaml", tmp_path / "results")


def test_collecting_refuses_results_of_several_kinds_of_gpus(tmp_path: Path) -> None:
    results(tmp_path / "one")
    results(tmp_path / "two", gpus=["NVIDIA H100 80GB HBM3"])
    with pytest.raises(UserError, match="of h100_80g, h200; measure all of them on one kind of GPU"):
        collect.main([str(tmp_path)], tmp_path / "reference.yaml", tmp_path / "results")


@pytest.mark.slow
def test_committed_comparisons_are_a_generated_table(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    shutil.copy(ROOT / "docs/results/records/moflow_train_512_amp.json", tmp_path / "records")
    rows = Path(shutil.copy(collect.FILE, tmp_path))
    collect.main([str(results(tmp_path / "out"))], rows, tmp_path / "beside")
    (table,) = (path for path in write_docs(tmp_path) if path.name == "beside.csv")
    ours, theirs = csv.DictReader(table.read_text().splitlines())
    assert (ours["side"], ours["throughput"], ours["ours_over_it"]) == ("Reprise", "305.0", "")
    assert (theirs["throughput"], theirs["least"], theirs["greatest"], theirs["gpu"]) == (
        "101.0", "3.0", str(310 / 102), "NVIDIA H200"
    )  # fmt: skip
    best = Figures(tmp_path, Path("docs/results/one.md")).beside("mobilenet_v1")
    assert best.startswith("**Train**, images per second; 224x224 pixels, no augmentation:\n\n| batch |")
    assert best.endswith("| 64, AMP | 305 | timm mobilenetv1_100, graph | 101 | 3.02 | 3.00 to 3.04 |")
    assert not Figures(tmp_path, Path("docs/results/one.md")).beside("dlrm")
    assert write_docs(tmp_path)  # which replaces a table of its own
    (tmp_path / "beside" / "broken.json").write_text('{"case": 1}')
    with pytest.raises(UserError, match=r"broken\.json: not a beside\.json"):
        write_docs(tmp_path)
