"""The cases of each model: what our side runs, and its peers."""

from dataclasses import dataclass, replace
from typing import Literal

TRAIN = ("logger=none", "callbacks=bare", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false",
         "fit.max_steps=-1", "fit.max_epochs=1000000", "pictures=false")  # fmt: skip
TINY_BATCH = 8
PREDICT = ("benchmark=true", "num_samples=1000000000")


@dataclass(frozen=True)
class Peer:
    """Another implementation.

    Attributes:
        name: as tables have it.
        prepare: 'module:function' of benchmarks.beside.peers; `variant` is its argument.
        reference: whether it is in the clone that --reference names.
    """

    name: str
    prepare: str
    variant: str = ""
    reference: bool = False


@dataclass(frozen=True)
class Case:
    """What the sides of a comparison have in common.

    Attributes:
        options: of train.py or predict.py, besides model, batch and precision; `tiny` the further ones of a rehearsal,
            which has batches of TINY_BATCH.
        peers: the other sides, the one first that is expected to be the fastest.
        note: what is compared, where batch and precision do not say it.
    """

    name: str
    model: str
    kind: Literal["train", "predict", "convolution"]
    batch_size: int
    precision: str
    unit: str
    options: tuple[str, ...]
    peers: tuple[Peer, ...]
    tiny: tuple[str, ...] = ()
    note: str = ""

    def rehearsed(self) -> "Case":
        """Returns the case in fp32, which every machine can compute."""
        return replace(self, precision="fp32")

    def batch(self, tiny: bool) -> int:
        return TINY_BATCH if tiny else self.batch_size

    def command(self, tiny: bool) -> list[str]:
        """Returns the arguments of our side's command, without the folders of its output."""
        batch = ("hp.batch_size={}" if self.kind == "train" else "batch_size={}").format(self.batch(tiny))
        common = TRAIN if self.kind == "train" else PREDICT
        options = [f"model={self.model}", f"precision={self.precision}", *common, *self.options]
        return [*options, batch, *(self.tiny if tiny else ())]

    def data(self, tiny: bool) -> list[str]:
        """Returns the options of train.py that choose the data."""
        options = [option for option in (*self.options, *(self.tiny if tiny else ())) if is_of_data(option)]
        return [f"model={self.model}", f"hp.batch_size={self.batch(tiny)}", *options]


def is_of_data(option: str) -> bool:
    """Returns whether an option of train.py is one of the data."""
    return option.lstrip("+~").startswith(("datamodule", "data_root", "model.task.sizes"))


PLAIN_IMAGES = ("datamodule=image_synthetic", "model.task.augment.flip=false", "model.task.augment.jitter=0",
                "model.task.augment.lighting=0")  # fmt: skip
TINY_MOBILENET = ("datamodule.num_classes=6", "datamodule.image_size=32", "datamodule.pool_batches=2",
                  "model.task.network.width_multiplier=0.125", "datamodule.steps_per_epoch=3")  # fmt: skip


def timm(*variants: str) -> tuple[Peer, ...]:
    return tuple(Peer(f"timm mobilenetv1_100, {v}", "mobilenet:timm_training", v) for v in variants)


MOBILENET = [
    Case(f"train_{batch}_{precision}", "mobilenet_v1", "train", batch, precision, "images", PLAIN_IMAGES,
         timm("channels_last, compiled, graph", "channels_last, compiled", "channels_last, graph", "channels_last"),
         TINY_MOBILENET, "224x224 pixels, no augmentation")
    for batch, precision in ((64, "amp"), (64, "tf32"), (64, "fp32"), (256, "amp"))
]  # fmt: skip

FULL_TOKENS = ("model.task.weights=random", "hp.accumulate=1", "datamodule=token_synthetic", "fit.evaluate_first=false")
TINY_SIZES = "model.task.sizes={vocab_size:1100,max_position_embeddings:512,dim:24,n_layers:2,n_heads:2,hidden_dim:32}"
TINY_TOKENS = (TINY_SIZES, "datamodule.vocabulary_size=1100", "datamodule.sentences.train=32")  # fmt: skip


def hugging_face(*variants: str) -> tuple[Peer, ...]:
    return tuple(Peer(f"Hugging Face DistilBERT, {v}", "distilbert:hugging_face_training", v) for v in variants)


# A GPU holds all sides of a case at once, so float32 has fewer of them.
VARIANTS = {
    "bf16": ("sdpa, compiled, graph", "sdpa, compiled", "eager attention, compiled", "sdpa"),
    "amp": ("sdpa, compiled, graph", "sdpa"),
    "tf32": ("sdpa, compiled, graph", "eager attention, compiled, graph", "sdpa"),
    "fp32": ("sdpa, compiled, graph", "sdpa"),
}
DISTILBERT = [
    Case(f"train_full_96_{precision}", "distilbert", "train", 96, precision, "samples",
         (*FULL_TOKENS, "datamodule.length=512"), hugging_face(*variants),
         (*TINY_TOKENS, "datamodule.length=16"), "512 tokens in every sentence")
    for precision, variants in VARIANTS.items()
] + [
    Case(f"train_padded_96_{precision}", "distilbert", "train", 96, precision, "samples", FULL_TOKENS,
         hugging_face(*variants), (*TINY_TOKENS, "datamodule.max_length=16"),
         "sentences as long as SST-2's, 13 tokens on average, padded to 512")
    for precision, variants in VARIANTS.items()
] + [
    Case("train_packed_96_bf16", "distilbert", "train", 96, "bf16", "samples",
         (*FULL_TOKENS, "datamodule.padding=packed"),
         hugging_face("packed, compiled, graph", "packed, graph", "packed", "flash attention 2, varlen",
                      "sdpa, padded to the longest, compiled, graph", "sdpa, padded to the longest"),
         TINY_TOKENS, "sentences as long as SST-2's, 13 tokens on average")
]  # fmt: skip

NVIDIA_MOFLOW = {"graph": "its CUDA graphs", "jit": "TorchScript", "eager": "eager"}


def moflow(kind: str, *variants: str) -> tuple[Peer, ...]:
    return tuple(Peer(f"NVIDIA MoFlow, {NVIDIA_MOFLOW[v]}", f"moflow:{kind}", v, reference=True) for v in variants)


TINY_MOFLOW = ("model.task.network.bond_hidden=[8,8]", "model.task.network.num_bond_flows=2",
               "model.task.network.gnn_channels=8", "model.task.network.atom_hidden=[8,8]",
               "model.task.network.num_atom_flows=3")  # fmt: skip
MOFLOW = [
    Case(f"train_{batch}_{precision}", "moflow", "train", batch, precision, "molecules", ("hp.lr=5e-4",),
         moflow("training", "graph", *(("jit", "eager") if batch == 512 else ())), TINY_MOFLOW,
         "ZINC-250k; the peer's batches lie on the GPU")
    for batch, precision in ((512, "amp"), (512, "tf32"), (2048, "amp"), (3584, "amp"), (3584, "tf32"))
] + [
    Case(f"generate_{batch}_{precision}", "moflow", "predict", batch, precision, "molecules", (),
         moflow("generation", "jit", "eager"), TINY_MOFLOW, "untrained, temperature 0.3")
    for batch, precision in ((512, "amp"), (512, "tf32"), (2048, "amp"), (2048, "tf32"))
]  # fmt: skip

GRAPHED = "whole step in one CUDA graph"


def se3(kind: str, *variants: str) -> tuple[Peer, ...]:
    return tuple(Peer(f"NVIDIA SE(3)-Transformer, {v}", f"se3:{kind}", v, reference=True) for v in variants)


TINY_SE3 = ("model.task.network.num_layers=2", "model.task.network.num_channels=4", "model.task.network.num_heads=2")
CONVOLUTION = (
    Peer("cuEquivariance", "convolution:equivariant", "cuequivariance"),
    Peer("OpenEquivariance", "convolution:equivariant", "openequivariance"),
    Peer("e3nn, compiled", "convolution:equivariant", "e3nn compiled"),
    Peer("e3nn", "convolution:equivariant", "e3nn"),
)
SE3 = [
    Case(f"train_{batch}_{precision}", "se3_transformer", "train", batch, precision, "molecules", (),
         se3("training", *((GRAPHED, "eager") if batch < 1600 else ("eager",))), TINY_SE3,
         "QM9; the peer's batches lie on the GPU")
    for batch, precision in ((240, "amp"), (240, "tf32"), (120, "amp"), (120, "tf32"), (1600, "amp"), (1600, "tf32"))
] + [
    Case(f"predict_{batch}_{precision}", "se3_transformer", "predict", batch, precision, "molecules",
         ("datamodule.predict=train",), se3("prediction", "one CUDA graph", "eager"), TINY_SE3,
         "untrained; ours with loading, the peer without")
    for precision in ("amp", "tf32") for batch in (400, 800, 1600)
] + [
    Case(f"convolution_8960_{precision}", "se3_transformer", "convolution", 8960, precision, "edges", (), CONVOLUTION,
         note="forward and backward of a convolution, 32 channels of degrees 0 to 3 in and out; no attention or norm")
    for precision in ("tf32", "amp")
]  # fmt: skip

RESIDENT = ("datamodule=criteo_resident", "datamodule.pool_batches=8", "datamodule.steps_per_epoch=100000", "hp.lr=1")
TINY_DLRM = ("datamodule.max_rows=100", "datamodule.pool_batches=2", "datamodule.steps_per_epoch=50",
             "datamodule.test_batches=1")  # fmt: skip
FBGEMM = "TorchRec with FBGEMM"


def dlrm(batch: int) -> tuple[Peer, ...]:
    """Returns the peers of a batch: the tables of all sides are 16 GiB each, so a large batch has fewer sides."""
    variants = ("compiled, graph", "compiled", "eager") if batch < 100_000 else ("compiled, graph",)
    nvidia = Peer("NVIDIA DLRM, its CUDA graph", "dlrm:nvidia", "graph", reference=True)
    return nvidia, *(Peer(f"{FBGEMM}, {variant}", "dlrm:torchrec_training", variant) for variant in variants)


DLRM = [
    Case(f"train_{batch}_{precision}", "dlrm", "train", batch, precision, "samples", RESIDENT, dlrm(batch), TINY_DLRM,
         "26 tables of Criteo with frequency limit 15, 128 numbers a row; ids on the GPU")
    for batch in (65536, 262144) for precision in ("amp", "tf32")
]  # fmt: skip

CASES = {"mobilenet_v1": MOBILENET, "distilbert": DISTILBERT, "moflow": MOFLOW, "se3_transformer": SE3, "dlrm": DLRM}
