"""Machine code that does not wait for the tensor cores: how it is found, and that ours does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.machine_code import parsed
from benchmarks.wgmma import findings
from benchmarks.wgmma_descriptors import wrong_descriptors
from tests.support import ROOT

LOOP = """
.L_x_0:
        /*1000*/                   WARPGROUP.ARRIVE ;
        /*1010*/                   HGMMA.64x32x16.F32 R24, R100, gdesc[UR16], R24, gsb0 ;
        /*1020*/                   {first}
        /*1030*/                   WARPGROUP.DEPBAR.LE gsb0, 0x{left} ;
        /*1040*/                   {second}
        /*1050*/               @P1 BRA `(.L_x_0) ;
        /*1060*/                   {third}
        /*1070*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*1080*/                   F2FP.F16.F32.PACK_AB R7, R39, R38 ;
        /*1090*/                   EXIT ;
"""
HARMLESS, EARLY = "FADD R40, R8, R9 ;", "F2FP.F16.F32.PACK_AB R6, R39, R38 ;"


@pytest.mark.parametrize(
    ("first", "left", "second", "third", "wanted"),
    [
        (HARMLESS, 0, HARMLESS, HARMLESS, []),
        (HARMLESS, 0, EARLY, EARLY, []),
        (EARLY, 0, HARMLESS, HARMLESS, ["1020"]),
        (HARMLESS, 1, HARMLESS, EARLY, ["1060"]),
        (HARMLESS, 1, EARLY, HARMLESS, ["1040"]),
        (HARMLESS, 1, "@!P0 FADD R40, R24, R8 ;", HARMLESS, ["1040"]),
    ],
)
def test_what_is_read_too_early(first: str, left: int, second: str, third: str, wanted: list[str]) -> None:
    hazards = findings(LOOP.format(first=first, left=left, second=second, third=third))
    assert list(dict.fromkeys(finding.instruction.address for finding in hazards)) == wanted


def test_what_a_loop_leaves_running_meets_its_beginning() -> None:
    code = LOOP.format(first=HARMLESS, left=1, second=HARMLESS, third=HARMLESS)
    code = code.replace("WARPGROUP.ARRIVE", "MOV R24, RZ")
    assert [finding.registers for finding in findings(code)] == [(24,)]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("MOV R103, RZ", (103,)), ("LDS.64 R102, [R9]", (102, 103)), ("LDSM.16.M88.4 R97, [R9]", (100,)),
     ("FADD R9, R100, R101", ()), ("STS [R100], R9", ()), ("MOV R104, RZ", ())],
)  # fmt: skip
def test_a_left_factor_is_written_too_early(name: str, wanted: tuple[int, ...]) -> None:
    """In the next step of a loop; reading it does no harm."""
    code = LOOP.format(first=HARMLESS, left=1, second=HARMLESS, third=HARMLESS).replace("WARPGROUP.ARRIVE", name)
    assert [finding.registers for finding in findings(code)] == [wanted][: len(wanted)]


SWAP = """ULOP3.LUT UR7, UR8, UR7, URZ, 0x3c, !UPT ;
        /*0146*/                   ULOP3.LUT UR8, UR8, UR7, URZ, 0x3c, !UPT ;
        /*0147*/                   ULOP3.LUT UR7, UR8, UR7, URZ, 0x3c, !UPT"""
DESCRIPTORS = """
        /*0100*/                   USHF.R.U32.HI UR8, URZ, 0x4, UR5 ;
        /*0110*/                   UMOV UR4, URZ ;
        /*0120*/                   USGXT.U32 UR8, UR8, 0xe ;
        /*0130*/                   UIADD3 UR6, UP0, UR8, 0x2, URZ ;
        /*0140*/                   UIADD3.X UR7, {upper}, 0x40000040, URZ, UP0, !UPT ;
        /*0145*/                   {swap} ;
        /*0150*/                   MOV R9, UR7 ;
        /*0160*/                   STL [R1+0x8], R9 ;
        /*0170*/                   LDC R9, c[0x0][0x210] ;
        /*0180*/                   LDL R10, [R1+{slot}] ;
        /*0190*/                   R2UR UR19, {word} ;
        /*01a0*/                   UIADD3.64 UR20, UR6, 0x7e, URZ ;
        /*01b0*/                   UMOV UR22, UR6 ;
        /*01c0*/                   UMOV UR23, UR7 ;
        /*01d0*/                   HGMMA.64x16x16.F32 R56, R24, gdesc[UR16], R56 ;
        /*01e0*/                   HGMMA.64x16x16.F32 R56, gdesc[UR20].tnspA.tnspB, R56, gsb0 ;
"""


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, []),
        ({"upper": "UR5"}, ["01d0", "01e0"]),  # as ptxas 12.8 mistook a register for the one that has 0
        ({"slot": "0xc"}, ["01d0"]),
        ({"swap": SWAP}, ["01d0", "01e0"]),
        ({"swap": f"{SWAP} ;\n /*0148*/ UMOV UR7, UR8"}, []),
        ({"word": "R51"}, ["01d0"]),  # which nothing has written, as in another kernel
        ({"word": "R9"}, ["01d0"]),
        ({"upper": "UR12"}, ["01d0", "01e0"]),
        ({"swap": "CS2R R12, SRZ", "word": "R13"}, []),  # two registers become 0
    ],
)
def test_the_layout_in_a_descriptor_is_a_constant(change: dict[str, str], wanted: list[str]) -> None:
    code = DESCRIPTORS.format(**{"upper": "UR4", "slot": "0x8", "word": "R10", "swap": "NOP"} | change)
    assert [instruction.address for instruction in wrong_descriptors(parsed(code)[0])] == wanted


COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from src.models.mobilenet_v1.fast.pointwise_triton import forward

constants = {"INPUTS": 128, "OUTPUTS": 128, "ROWS": 128, "COLUMNS": 128, "DEPTH": 64, "PRECISION": "ieee",
             "UPCAST": False, "SETTLE": True, "CAP": 0.0, "tiles": 1}
types = {"z": "*fp16", "norm": "*fp32", "weight": "*fp16", "out": "*fp16", "partials": "*fp32", "rows": "i32"}
names = forward.arg_names
source = ASTSource(
    forward, {name: types.get(name, "constexpr") for name in names},
    {(names.index(name),): value for name, value in constants.items()},
    {(names.index(name),): [["tt.divisibility", 16]] for name in types},
)
compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 3})
"""


@pytest.mark.slow
def test_mobilenet_waits_for_its_products(tmp_path: Path) -> None:
    """As compiled for an H200; without `settle`, the next factor is written and float16 read too early."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    for command in (["-c", COMPILED], ["-m", "benchmarks.wgmma", str(tmp_path)]):
        ended = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout == "1 kernels, 1 with wgmma, 0 that do not wait for it, 0 with wrong descriptors\n"


@pytest.mark.slow
def test_kernels_of_a_list_are_compiled_without_a_gpu(tmp_path: Path) -> None:
    entries = json.loads((ROOT / "src/models/distilbert/fast/kernels.json").read_text("utf-8"))
    (tmp_path / "two.json").write_text(json.dumps(entries[:2]))
    command = [sys.executable, "-m", "benchmarks.wgmma", str(tmp_path / "two.json")]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.split(",")[0]) == (0, "2 kernels"), ended.stdout + ended.stderr


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.wgmma", str(tmp_path / "none.json")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1 and "none.json is no file" in ended.stderr


def test_a_folder_without_kernels(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.wgmma", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2 and "no compiled kernel" in ended.stderr
