"""Values that are not allowed: the check of a config refuses each by one line with the key, the value and the range.

Mistakes of other kinds, and those that only the whole command finds, are in tests/test_mistakes.py.
"""

import pytest

from src.cli import MISTAKES
from src.config.complete import complete_prediction
from src.config.explain import explain
from src.config.ranges import Range
from src.config.schema import PrepareConfig
from src.config.values import check_training, check_values, checked
from src.errors import UserError
from src.launch.devices import check_devices
from src.models.moflow.network import MoFlow
from src.sweep.largest import Auto
from tests.support.composing import composed

COUNT, NUMBER, TEXT = "a whole number of 1 or more", "a whole number of 0 or more", "a text"
LIMIT = "a whole number of 1 or more, or -1 for no limit"
POSITIVE, NOT_NEGATIVE, SHARE = "a number above 0", "a number of 0 or more", "a number of 0 to 1"
ROWS = "a whole number of 1 to 9007199254740992"
SECONDS = "a number above 0 and at most 1000000000"
BELOW_1, BETWEEN = "a number of 0 or more and below 1", "a number above 0 and below 1"
SEED, SWITCH, BOOL = "a whole number of 0 to 4294967295", "auto, on or off", "true or false"
NULL = ", or null"

TRAIN = "train hardware=cpu output_dir=out logger=none "
REFUSED = {
    TRAIN + "model=moflow": {
        "hp.batch_size=0": COUNT, "hp.batch_size=-8": COUNT, "hp.accumulate=0": COUNT,
        "hp.batch_per=world": "device or global",
        "hp.lr=-1": NOT_NEGATIVE, "hp.lr=nan": NOT_NEGATIVE, "hp.lr=inf": NOT_NEGATIVE,
        "fit.max_epochs=0": LIMIT, "fit.max_epochs=-5": LIMIT, "fit.max_steps=0": LIMIT, "fit.max_steps=-2": LIMIT,
        "fit.max_time_s=0": SECONDS + NULL, "fit.max_time_s=nan": SECONDS + NULL,
        "fit.max_time_s=inf": SECONDS + NULL,
        "fit.clip_norm=0": POSITIVE + NULL, "fit.clip_norm=-1": POSITIVE + NULL, "fit.clip_norm=nan": POSITIVE + NULL,
        "fit.ema_decay=0": BETWEEN + NULL, "fit.ema_decay=1": BETWEEN + NULL, "fit.ema_decay=nan": BETWEEN + NULL,
        "fit.eval_every_n_epochs=0": COUNT + NULL, "fit.eval_every_n_epochs=-1": COUNT + NULL,
        "fit.eval_every_n_steps=0": COUNT + NULL, "fit.checkpoint_every_n_epochs=0": COUNT,
        "fit.checkpoint_every_n_steps=0": COUNT + NULL, "fit.stop_after_plateau=0": COUNT + NULL,
        "hp.lr=1e300": NOT_NEGATIVE + ", at most 1e+38",
        "hp.batch_size=9223372036854775807": COUNT + ", at most 2147483647", "fit.max_time_s=1e308": SECONDS + NULL,
        "execution.graph=true": SWITCH, "execution.graph=yes": SWITCH, "execution.compile=maybe": SWITCH,
        "execution.graph_warmup_steps=0": COUNT, "execution.gradient_dtype=int8": "bf16 or fp16, or null",
        "execution.exchange=gloo": "auto or nccl", "execution.graph_gaps=on": "auto or off",
        "measure.window=0": COUNT, "measure.warmup_steps=-1": NUMBER, "sweep.parallel=0": COUNT + NULL,
        "sweep.timeout_s=0": SECONDS + NULL, "seed=-1": SEED, "seed=4294967296": SEED,
        "output_dir=": TEXT, "output_root=": TEXT, "data_root=": TEXT, "ckpt_path=": TEXT + NULL,
        "trainer.devices=0": COUNT, "trainer.num_nodes=-1": COUNT, "precision.loss_scale=0": POSITIVE,
        "precision.loss_scale=nan": POSITIVE, "precision.loss_scale_growth_steps=0": COUNT,
        "precision.matmul=low": "highest, high or medium",
        "precision.lightning=8-mixed": "32-true, 16-true, 16-mixed or bf16-mixed",
        "hardware.accelerator=tpu": "auto, cuda or cpu", "hardware.memory_gib=-1": POSITIVE + NULL,
        "hardware.peak_bandwidth=0": POSITIVE + NULL,
        "model.task.temperature=nan": f"{POSITIVE}, or a list, each {POSITIVE}",
        "model.task.temperature=0": f"{POSITIVE}, or a list, each {POSITIVE}",
        "model.task.temperature=[0.3,-1]": f"{POSITIVE}, or a list, each {POSITIVE}",
        "model.task.temperature=warm": f"{POSITIVE}, or a list, each {POSITIVE}",
        "model.task.correct_validity=7": BOOL, "model.task.eval_batch=0": COUNT,
        "model.task.final_molecules=-1": COUNT,
        "model.task.reconstructed=-1": NUMBER, "model.task.sample_batch=0": COUNT, "model.task.sample_batch=1.5": COUNT,
        "model.task.distances=sure": BOOL, "model.task.target=101": "a number of 0 to 100, or null",
        "model.task.target=nan": "a number of 0 to 100, or null",
        "model.task.target=high": "a number of 0 to 100, or null",
        "model.task.network=null": "what --cfg job shows without this",
        "model.task.schedule=3": "what --cfg job shows without this, or null",
        "model.task.network.num_nodes=0": COUNT,
        "model.task.network.num_atom_classes=1": "a whole number of 2 or more",
        "model.task.network.num_bond_classes=0": "a whole number of 2 or more",
        "model.task.network.max_atoms=0": COUNT,
        "model.task.network.bond_squeeze=0": COUNT, "model.task.network.bond_hidden=[8,0]": f"a list, each {COUNT}",
        "model.task.network.bond_hidden=8": f"a list, each {COUNT}", "model.task.network.num_bond_flows=0": COUNT,
        "model.task.network.num_bond_flows=2.5": COUNT, "model.task.network.num_bond_flows=many": COUNT,
        "model.task.network.num_bond_flows=null": COUNT, "model.task.network.conv_lu=3": "0, 1 or 2",
        "model.task.network.num_atom_flows=-1": COUNT, "model.task.network.gnn_channels=0": COUNT,
        "model.task.network.atom_hidden=[a]": f"a list, each {COUNT}", "model.task.network.noise_scale=-0.1": SHARE,
        "model.task.network.noise_scale=nan": SHARE, "model.task.network.norm_batch=0": COUNT + NULL,
        "model.task.network.logdet=wrong": "published or exact",
        "datamodule.data_dir=": TEXT, "datamodule.batch_size=0": COUNT,
        "datamodule.seed=-1": SEED,
        "datamodule.source.limit=0": COUNT + NULL, "datamodule.source.max_atoms=0": COUNT + NULL,
        "callbacks.history.every_n_steps=0": COUNT, "callbacks.checkpoint.every_n_epochs=0": COUNT,
        "callbacks.plateau.evaluations=0": COUNT + NULL, "callbacks.throughput.warmup_steps=-1": NUMBER,
        "callbacks.target.stop=maybe": BOOL, "model.predict.interpolate_steps=1": "a whole number of 2 or more",
        "model.predict.optimise=beauty": "qed or plogp, or null", "model.predict.optimise_steps=0": COUNT,
        "model.predict.optimise_molecules=5": "a whole number of 20 or more",
    },
    TRAIN + "model=moflow datamodule=smiles_file datamodule.source.file=my.smiles": {
        "datamodule.source.held_out_share=0": BETWEEN, "datamodule.source.held_out_share=1": BETWEEN,
        "datamodule.source.held_out_share=nan": BETWEEN, "datamodule.source.max_atoms=-1": COUNT,
        "datamodule.source.elements=C": f"a list, each {TEXT}, or null", "datamodule.source.skip_bad=some": BOOL,
    },
    TRAIN + "model=moflow +model.task.schedule={_target_:src.training.schedule.Cosine}": {
        "+model.task.schedule.interval=week": "epoch or step", "+model.task.schedule.final_ratio=2": SHARE,
        "+model.task.schedule.warmup=-1": NUMBER, "+model.task.schedule.total=0": COUNT + NULL,
    },
    TRAIN + "model=se3_transformer": {
        "model.task.network.num_layers=0": COUNT, "model.task.network.num_degrees=0": "a whole number of 1 to 7",
        "model.task.network.num_degrees=12": "a whole number of 1 to 7",
        "model.task.network.num_channels=-4": COUNT, "model.task.network.num_heads=0": COUNT,
        "model.task.network.channels_div=0": COUNT, "model.task.network.pooling=min": "max, mean or sum",
        "model.task.network.norm=2": BOOL, "model.task.network.low_memory=often": BOOL,
        "model.task.network.sharing=none": "full or pairwise",
        "+model.task.network.output_dim=0": COUNT, "datamodule.edges.cutoff=0": POSITIVE,
        "datamodule.edges.cutoff=nan": POSITIVE,
        "datamodule.edges.kind=all": "bonds, radius or full", "datamodule.source.limit=-1": COUNT + NULL,
        "model.predict.protocol=quick": "exact or published",
    },
    TRAIN + "model=se3_transformer datamodule=molecule_file datamodule.source.file=my.xyz": {
        "datamodule.source.val_share=-0.1": BELOW_1, "datamodule.source.test_share=1": BELOW_1,
        "datamodule.source.charge=1000": "a whole number of -100 to 100",
        "datamodule.source.charge=0.5": "a whole number of -100 to 100",
        "datamodule.elements=C": f"a list, each {TEXT}, or null",
    },
    TRAIN + "model=dlrm": {
        "model.task.network.embedding_dim=0": COUNT, "model.task.network.bottom=[512,0]": f"a list, each {COUNT}",
        "model.task.network.top=7": f"a list, each {COUNT}", "model.task.network.interaction=sum": "dot, cat or dcnv2",
        "model.task.network.cross_layers=0": COUNT, "model.task.network.cross_rank=0": COUNT,
        "model.task.network.embeddings.optimizer=adam": "sgd or adagrad", "model.task.engine=fast": "auto or torchrec",
        "+model.task.sharding={cat_0.bin:diagonal}":
            "{NAME: VALUE}, each data_parallel, table_wise, row_wise or column_wise, or null",
        "model.task.num_numerical=0": COUNT + NULL, "model.task.target=2": SHARE + NULL,
        "model.task.schedule.warmup_steps=-1": NUMBER, "model.task.schedule.decay_steps=0": COUNT,
        "model.task.schedule.end_factor=-1": SHARE, "model.task.schedule.decay_power=nan": NOT_NEGATIVE,
        "datamodule.threads=0": COUNT, "datamodule.prefetch=0": COUNT, "datamodule.test_batch_size=0": COUNT + NULL,
        "datamodule.prepare.frequency_limit=0": COUNT, "datamodule.prepare.vocabulary=none": "train or all",
        "datamodule.shuffle_batches=2": BOOL, "model.predict.repeats=0": COUNT + NULL,
    },
    TRAIN + "model=dlrm datamodule=criteo_synthetic": {
        "datamodule.generate.train_rows=0": ROWS, "datamodule.generate.max_rows=0": ROWS + NULL,
        "datamodule.generate.cardinalities=[0]": "a list, each a whole number of 1 to 2147483646, or null",
        "datamodule.generate.hotness=[0]": f"a list, each {COUNT}, or null",
        "datamodule.generate.num_numerical=0": COUNT,
        "datamodule.generate.seed=-1": SEED,
    },
    TRAIN + "model=dlrm datamodule=criteo_resident": {
        "datamodule.steps_per_epoch=0": COUNT, "datamodule.pool_batches=0": COUNT, "datamodule.test_batches=0": COUNT,
        "datamodule.data_seed=-1": SEED,
    },
    TRAIN + "model=dlrm datamodule=click_file datamodule.source.file=my.csv": {
        "datamodule.source.buckets=0": COUNT, "datamodule.source.held_out_share=0": "a number above 0 and at most 1",
        "datamodule.source.held_out_share=1.5": "a number above 0 and at most 1",
        "datamodule.source.numerical=age": f"a list, each {TEXT}", "datamodule.source.label=": TEXT,
    },
    TRAIN + "model=distilbert model.task.weights=random": {
        "model.task.network.dropout=1": BELOW_1, "model.task.network.attention_dropout=-0.1": BELOW_1,
        "model.task.network.head_dropout=nan": BELOW_1, "model.task.network.pooling=max": "first or mean",
        "model.task.layer_decay=0": POSITIVE, "model.task.r_drop=-1": NOT_NEGATIVE, "model.task.max_length=0": COUNT,
        "+model.task.sizes={dim:0}": f"{{NAME: VALUE}}, each {COUNT}, or null",
        "model.task.schedule.warmup=-1": NUMBER,
        "datamodule.padding=none": "max_length, longest, bucketed or packed",
        "datamodule.max_length=2": "a whole number of 3 or more",
        "datamodule.raw=": TEXT + NULL, "model.task.target=-1": SHARE + NULL, "model.predict.input=": TEXT + NULL,
    },
    TRAIN + "model=distilbert model.task.weights=random datamodule=token_synthetic": {
        "datamodule.sentences={train:0,dev:1}": f"{{NAME: VALUE}}, each {COUNT}",
        "datamodule.length=1": "a whole number of 3 or more, or null",
        "datamodule.vocabulary_size=5": "a whole number of 1001 or more",
    },
    TRAIN + "model=distilbert model.task.weights=random datamodule=sentences datamodule.source.file=my.csv": {
        "datamodule.source.held_out_share=1": BETWEEN, "datamodule.vocabulary_size=0": COUNT,
        "datamodule.source.seed=-1": SEED,
    },
    TRAIN + "model=mobilenet_v1": {
        "model.task.network.num_classes=0": COUNT, "model.task.network.width_multiplier=0": POSITIVE,
        "model.task.network.width_multiplier=nan": POSITIVE,
        "model.task.network.strides=[0]": f"a list, each {COUNT}, or null",
        "model.task.augment.jitter=1.5": SHARE, "model.task.augment.pad=-1": NUMBER,
        "model.task.augment.cutout=-1": NUMBER,
        "model.task.augment.trivial=nan": SHARE, "model.task.augment.lighting=-1": NOT_NEGATIVE,
        "model.task.augment.std=[1,0,1]": f"a list, each {POSITIVE}", "model.task.label_smoothing=2": SHARE,
        "model.task.mixup=-1": NOT_NEGATIVE, "model.task.mixup=nan": NOT_NEGATIVE, "model.task.cutmix=1.5": SHARE,
        "model.task.mixup_off_epochs=-1": NUMBER, "model.task.image_size=0": COUNT, "datamodule.num_classes=0": COUNT,
        "datamodule.image_size=-1": COUNT, "datamodule.threads=0": COUNT + NULL, "datamodule.prefetch=0": COUNT,
        "+model.task.schedule.factor=-1": NOT_NEGATIVE, "+model.task.schedule.at=[-1]": f"a list, each {NUMBER}",
    },
    "predict hardware=cpu output_dir=out": {
        "num_samples=0": COUNT + NULL, "num_samples=-1": COUNT + NULL, "batch_size=0": COUNT,
        "warmup_batches=-1": NUMBER,
        "seed=-1": SEED, "output=": TEXT + NULL, "execution.compile=maybe": SWITCH,
        "model.predict.temperature=0": f"{POSITIVE}, or a list, each {POSITIVE}, or null",
        "model.predict.temperatures=[0]": f"a list, each {POSITIVE}, or a list, each {POSITIVE}, or null",
        "model.predict.interpolate=CCO": f"a list, each {TEXT}, or null",
        "model.predict.optimise_starts=0": f"{COUNT}, or a list, each {TEXT}",
        "model.predict.optimise_similarity=2": f"{SHARE}, or a list, each {SHARE}",
    },
    "prepare datamodule=zinc250k": {
        "seed=-1": SEED, "data_root=": TEXT, "datamodule.source.limit=0": COUNT + NULL,
        "+datamodule.source.workers=0": COUNT + NULL,
    },
    "auto +fix_hp=auto": {
        "fix_hp.margin=1": BELOW_1, "fix_hp.margin=nan": BELOW_1, "fix_hp.steps=0": COUNT, "fix_hp.multiple=0": COUNT,
        "fix_hp.multiple=1.5": COUNT, "fix_hp.most=0": COUNT + NULL, "fix_hp.lr_rule=cube": "sqrt, linear or keep",
        "fix_hp.choose=speed": "batch_size or p_core",
    },
}  # fmt: skip

OTHERS = {  # words of other messages
    TRAIN + "+model.task.temprature=1": "model.task has no key 'temprature', did you mean 'temperature'?",
    TRAIN + "+datamodule.source.limt=1": "datamodule.source has no key 'limt', did you mean 'limit'?",
    TRAIN + "+callbacks.history.every=1": "callbacks.history has no key 'every'; see `--cfg job`",
    TRAIN + "+model.predict.temprature=1": "model.predict has no key 'temprature', did you mean 'temperature'?",
    TRAIN + "model.task._target_=src.models.moflow.task.Task2": ".task.Task2 is no class",
    TRAIN + "model.task._target_=7": "model.task._target_=7 is no class",
    TRAIN
    + "model.task.network._target_=nowhere.Net": "model.task.network._target_=nowhere.Net is no class or function",
    TRAIN + "model.task.optimizer.betas=[2,0.9]": "model.task.optimizer: Invalid beta parameter at index 0: 2",
    TRAIN + "+model.task.optimizer.eps=-1": "model.task.optimizer: Invalid epsilon value: -1",
    TRAIN + "+model.task.optimizer.weight_decay=nan": "model.task.optimizer.weight_decay=nan is not allowed",
    TRAIN + "+model.task.optimizer.momentum=0.9": "model.task.optimizer has no key 'momentum'",
    TRAIN + "model=mobilenet_v1 model.task.optimizer.momentum=-1": "model.task.optimizer: Invalid momentum value: -1",
    TRAIN + "model=mobilenet_v1 model.task.optimizer.momentum=0": "Nesterov momentum requires a momentum",
    TRAIN + "~model.task.network": "model.task.network has no value; give it as model.task.network=VALUE",
    TRAIN + "hp.batch_size=null": "hp.batch_size: ",
    TRAIN + "fit.stop_after_plateau=3 fit.eval_every_n_epochs=null": "fit.stop_after_plateau needs evaluations",
    TRAIN + "+callbacks.x=3": "callbacks.x=3 is not allowed; give callbacks.x._target_=CLASS, a Callback, or leave",
    TRAIN + "+callbacks.x={_target_:builtins.dict}": "callbacks.x._target_=builtins.dict is no Callback",
    TRAIN + "+logger.x=3": "logger.x=3 is not allowed; give logger.x._target_=CLASS, a Logger",
    TRAIN + "logger=wandb +logger.wandb.api_key=x": "logger.wandb.api_key is no setting; give the key by",
    TRAIN + "model.task=null": "model.task=null is not allowed; give model.task._target_=CLASS, a Task",
    TRAIN + "model.predict=text": "model.predict=text is not allowed: it is a section",
    TRAIN + "+model.taask=1": "model has no key 'taask', did you mean 'task'?",
    TRAIN + "trainer.name=1x2": "trainer.name=1x2 but its nodes and devices are 1x1",
    TRAIN + "fit.stop_at_target=true model.task.target=null": "fit.stop_at_target needs a target",
    TRAIN + "fit.stop_at_target=true fit.eval_every_n_epochs=null": "fit.stop_at_target needs evaluations",
    TRAIN + "ckpt_path=none.ckpt": "none.ckpt: there is no such checkpoint",
    TRAIN + "model=dlrm trainer=1x4 hp.batch_size=30": "hp.batch_size=30 is global and does not divide by 4 ranks",
}


def said(command: str) -> str:
    """Returns the line that refuses the command's config."""
    entry, *overrides = command.split()
    with pytest.raises(MISTAKES) as refused:
        config = composed("train" if entry == "auto" else entry, *overrides)
        if entry == "prepare":
            checked(config, PrepareConfig)
        elif entry == "predict":
            complete_prediction(config)
        elif entry == "auto":
            check_values("fix_hp.", config.fix_hp, Auto)
        else:
            check_training(config)
    line = explain(refused.value)
    assert "\n" not in line
    return line


@pytest.mark.slow
@pytest.mark.parametrize("command", REFUSED)
def test_a_value_out_of_range_is_refused_with_the_key_the_value_and_the_range(command: str) -> None:
    for override, words in REFUSED[command].items():
        key = override.lstrip("+").partition("=")[0]
        line = said(f"{command} {override}")
        assert line.startswith(f"{key}="), line
        assert line.endswith(f" is not allowed; expected {words}"), line


def test_a_target_of_zero_is_one() -> None:
    overrides = "fit.stop_at_target=true", "model.task.target=0", "fit.eval_every_n_epochs=1", "output_dir=out"
    check_training(composed("train", "hardware=cpu", *overrides))


@pytest.mark.parametrize("command", OTHERS)
def test_a_part_that_does_not_fit_is_refused(command: str) -> None:
    assert OTHERS[command] in said(command)


def test_the_name_of_a_topology_is_that_of_its_nodes_and_devices() -> None:
    assert composed("train", *TRAIN.split()[1:], "trainer.devices=2").trainer.name == "1x2"
    assert composed("train", *TRAIN.split()[1:], "trainer=2x8").trainer.name == "2x8"


def test_many_more_processes_than_cores_need_a_key() -> None:
    config = composed("train", *TRAIN.split()[1:], "trainer.devices=4096")
    with pytest.raises(UserError, match=r"trainer.devices=4096 starts .* cores, .* or trainer.crowded=true"):
        check_devices(config.trainer, "cpu")
    config.trainer.crowded = True
    check_devices(config.trainer, "cpu")


def test_there_are_two_hundred_mistakes() -> None:
    assert sum(map(len, REFUSED.values())) + len(OTHERS) >= 200


def test_a_value_at_the_edge_of_its_range_is_taken() -> None:
    edges = (
        "hp.lr=0", "fit.max_epochs=-1", "fit.max_steps=1", "seed=4294967295", "measure.window=1", "fit.ema_decay=0.999",
        "model.task.temperature=[0.3,0.4]", "model.task.network.noise_scale=0", "model.task.target=null",
    )  # fmt: skip
    check_training(composed("train", *TRAIN.split()[1:], *edges))


def test_open_ends_are_outside_of_a_range() -> None:
    assert [value in Range(above=0, below=1) for value in (0, 1e-9, 0.5, 1)] == [False, True, True, False]
    assert [value in Range(0, 1) for value in (-1e-9, 0, 1, 1.1)] == [False, True, True, False]
    assert [value in Range(1, also=(-1, "no limit")) for value in (-1, 0, 1)] == [True, False, True]


def test_a_number_that_float64_does_not_hold_is_refused() -> None:
    with pytest.raises(UserError, match=r"^num_bond_flows=10{76,}\.\.\. is not allowed; "):
        check_values("", {"num_bond_flows": 10**400}, MoFlow)
