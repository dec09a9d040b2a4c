"""A real run that takes a second: some dozens of drugs and their fragments, and a MoFlow of the smallest sizes."""

from pathlib import Path

from omegaconf import DictConfig

from tests.support.composing import composed

SMILES = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "CC(=O)Nc1ccc(O)cc1",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
    "CN1CCCC1c1cccnc1",
    "NCCc1ccc(O)c(O)c1",
    "CNCC(O)c1ccc(O)c(O)c1",
    "NCCc1c[nH]c2ccc(O)cc12",
    "COc1ccc2[nH]cc(CCNC(C)=O)c2c1",
    "CN(C)CCc1c[nH]c2ccccc12",
    "CC(N)Cc1ccccc1",
    "CNC(C)Cc1ccccc1",
    "CC(C)NCC(O)COc1cccc2ccccc12",
    "CCN(CC)CC(=O)Nc1c(C)cccc1C",
    "CCN(CC)CCOC(=O)c1ccc(N)cc1",
    "CCOC(=O)c1ccc(N)cc1",
    "Nc1ccc(cc1)S(N)(=O)=O",
    "Cc1cc(NS(=O)(=O)c2ccc(N)cc2)no1",
    "CN1C(=O)CN=C(c2ccccc2)c2cc(Cl)ccc12",
    "OC(c1ccccc1)(c1ccccc1)C1CCNCC1",
    "CN(C)CCOC(c1ccccc1)c1ccccc1",
    "CN1CCC(CC1)=C1c2ccccc2CCc2ccccc12",
    "CN(C)CCCN1c2ccccc2CCc2ccccc12",
    "CNCCC(Oc1ccc(cc1)C(F)(F)F)c1ccccc1",
    "CC(NC(C)(C)C)C(=O)c1cccc(Cl)c1",
    "CN(C)CCC(c1ccc(Br)cc1)c1ccccn1",
    "NC(=O)N1c2ccccc2C=Cc2ccccc12",
    "O=C1NC(=O)C(N1)(c1ccccc1)c1ccccc1",
    "CCC1(CC)C(=O)NC(=O)NC1=O",
    "CCCC(CCC)C(=O)O",
    "NCC1(CC(=O)O)CCCCC1",
    "NC(=O)c1cnccn1",
    "NNC(=O)c1ccncc1",
    "OC(=O)c1cccnc1",
    "NC(=O)c1cccnc1",
    "Cc1ncc([N+](=O)[O-])n1CCO",
    "CN(C)C(=N)NC(=N)N",
    "Cn1c(=O)c2[nH]cnc2n(C)c1=O",
    "O=c1[nH]cnc2[nH]ncc12",
    "Nc1nc2[nH]cnc2c(=O)[nH]1",
    "O=c1[nH]cc(F)c(=O)[nH]1",
    "Cc1c[nH]c(=O)[nH]c1=O",
    "CSCCC(N)C(=O)O",
    "NC(CS)C(=O)O",
    "NC(Cc1ccccc1)C(=O)O",
    "NC(Cc1c[nH]cn1)C(=O)O",
    "NC(CO)C(=O)O",
    "NC(CC(=O)O)C(=O)O",
    "OC(=O)CC(O)(CC(=O)O)C(=O)O",
    "CC(O)C(=O)O",
    "OCC1OC(O)C(O)C(O)C1O",
    "OCC(O)CO",
    "COc1cc(C=O)ccc1O",
    "COc1cc(CNC(C)=O)ccc1O",
    "CC1CCC(C(C)C)C(O)C1",
    "CC1(C)C2CCC1(C)C(=O)C2",
    "Oc1ccccc1C(=O)O",
    "Oc1cccc(O)c1",
    "Clc1ccc(Cl)cc1",
    "OC(=O)Cc1ccccc1Nc1c(Cl)cccc1Cl",
    "COc1ccc2cc(ccc2c1)C(C)C(=O)O",
    "CCCCC(=O)OC",
    "CCOCC",
    "CC#N",
    "C1CCOC1",
    "CS(C)=O",
    "CN(C)C=O",
    "O=C1CCCN1",
    "Ic1ccccc1",
    "OP(=O)(O)CN",
    "FC(F)(F)C(Cl)Br",
    "C1CNCCN1",
    "C1COCCN1",
    "c1ccc2[nH]ccc2c1",
    "c1ccc2ncccc2c1",
    "c1ccsc1",
    "c1ccoc1",
    "Cc1ccccc1",
]

NETWORK = (
    "bond_hidden=[8,8]", "num_bond_flows=2", "gnn_channels=8", "atom_hidden=[8,8]", "num_atom_flows=3",
)  # fmt: skip


def write_smiles(path: Path) -> Path:
    """Writes SMILES, one a line; returns the path."""
    path.write_text("".join(f"{text}\n" for text in SMILES), encoding="utf-8")
    return path


def tiny_overrides(home: Path) -> list[str]:
    """Returns the command line of a tiny run of MoFlow with its files in `home`: 8 steps of 8 molecules an epoch."""
    file = home / "my.smiles"
    return [
        "model=moflow", "datamodule=smiles_file", "precision=fp32", "hardware=cpu", "logger=none", "pictures=false",
        "~callbacks.progress", f"datamodule.source.file={file if file.exists() else write_smiles(file)}",
        "+datamodule.source.workers=1", "datamodule.source.rare_below=1", "datamodule.source.split=random",
        f"data_root={home / 'data'}", f"output_root={home / 'outputs'}",
        *(f"model.task.network.{size}" for size in NETWORK),
        "model.task.eval_batch=8", "model.task.final_molecules=24", "model.task.reconstructed=16",
        "model.task.sample_batch=16", "hp.batch_size=8", "hp.lr=1e-3", "fit.max_epochs=1", "fit.eval_every_n_epochs=1",
        "fit.checkpoint_every_n_epochs=1", "measure.window=2", "measure.warmup_steps=2",
    ]  # fmt: skip


def tiny_config(home: Path, *overrides: str) -> DictConfig:
    """Returns the composed config of `tiny_overrides`, then `overrides`; it writes to `home`/outputs/moflow/run."""
    return composed("train", *tiny_overrides(home), f"output_dir={home / 'outputs' / 'moflow' / 'run'}", *overrides)
