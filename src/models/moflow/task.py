"""MoFlow as a task: bits per dimension to train on, generated molecules to be judged by."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, distributed

from src.config.ranges import Count, Number, Range
from src.config.schema import TrainConfig
from src.datamodules.molecules.datamodule import MoleculeDataModule
from src.datamodules.molecules.encoded import MolecularData
from src.errors import UserError
from src.gpu.exact_products import exact_products
from src.gpu.replace import Kernels
from src.gpu.separate_uses import separate_uses
from src.measure.clock import Clock
from src.measure.roofline import Cost
from src.models.moflow import fast
from src.models.moflow.actnorm import kept_statistics
from src.models.moflow.bond import divergence_note
from src.models.moflow.cost import cost
from src.models.moflow.export import exported
from src.models.moflow.generate import Options, generate_molecules, picture_of, vocabulary_of
from src.models.moflow.generated_molecules import GeneratedMolecules
from src.models.moflow.judge import POOL, Judge, features_ahead
from src.models.moflow.network import MoFlow
from src.models.moflow.predictor import MoleculeGenerator
from src.models.moflow.temperatures import Given, Temperature, temperature_of
from src.molecules.distances import FeaturesAhead, check_installed
from src.molecules.score import Scorer
from src.molecules.vocabulary import Vocabulary, of_elements
from src.system.later_dynamo import eagerly
from src.training.export import Export
from src.training.prediction import Prediction, PredictionJob, Quality, split_in_words
from src.training.predictor import Inference
from src.training.schedule import Schedule
from src.training.task import FinalMetric, Task

Batch = tuple[Tensor, Tensor]


class MoFlowTask(Task):
    """Trains MoFlow on molecular graphs and judges it by the molecules it generates.

    Args:
        network, optimizer, schedule: see Task.
        target: NUV in percent that counts as reached, or None.
        temperature: of sampling; the latent's standard deviation is multiplied by it. Two: of atoms and of bonds.
        generated_molecules: adds a loss on molecules generated in training, and its parts to the metrics.
        temperatures: after training, `temperature` becomes the one of these at which `eval_batch` molecules, taken as
            one batch, have the highest NUV. None keeps it.
        correct_validity: lower bonds of over-valent atoms and keep the largest fragment before judging.
        eval_batch: molecules generated at each evaluation, over all ranks.
        final_molecules: molecules generated after training, over all ranks.
        reconstructed: training molecules that are encoded and decoded after training, on each rank.
        sample_batch: molecules generated at once; uniqueness in the published NUV is within such a batch.
        elements: of the atom classes that the weights know; None until the data tell.
        distances: after training, FCD and NSPDK of the valid generated molecules from the held-out ones; `floor_fcd`
            and `floor_nspdk` are those of as many training molecules. NSPDK's features of real molecules are computed
            while the network trains; see `FeaturesAhead`.
    """

    most_bonds: Tensor  # of an atom of each class in the data, for generated_molecules

    unit = "molecules"
    curves = ("bits_atom", "bits_bond", "val_bits_atom", "val_bits_bond", "validity", "nuv")
    data_kind = MoleculeDataModule
    replacements = fast.OF_TASK
    expected_data = "MoFlow needs molecules; give datamodule=zinc250k, qm9_molecules or smiles_file"
    predictions_name = "molecules.csv"

    def __init__(
        self,
        network: MoFlow,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None = None,
        target: Annotated[float, Range(0, 100)] | None = 87.9,
        generated_molecules: GeneratedMolecules | None = None,
        temperature: Given = 0.3,
        temperatures: Sequence[Given] | None = None,
        correct_validity: bool = False,
        eval_batch: Count = 100,
        final_molecules: Count = 10_000,
        reconstructed: Number = 1000,
        sample_batch: Count = 512,
        distances: bool = False,
        elements: Sequence[str] | None = None,
    ) -> None:
        super().__init__(network, optimizer, schedule)
        self.network: MoFlow
        self.final_metric = FinalMetric("nuv", "max", target)
        self.generated_molecules = generated_molecules
        self.temperature = temperature_of(temperature)
        self.temperatures = [temperature_of(value) for value in temperatures or ()]
        self.correct_validity = correct_validity
        self.eval_batch, self.final_molecules, self.sample_batch = eval_batch, final_molecules, sample_batch
        self.reconstructed, self.distances = reconstructed, distances
        if distances:
            check_installed()
        self._held_out: list[Tensor] = []  # sums of both bits, and molecules, of an evaluation's batches
        self.elements = None if elements is None else list(elements)
        self._scorer: Scorer | None = None
        self._ahead: FeaturesAhead | None = None
        self._works_ahead = False

    def configure(self, config: TrainConfig, clock: Clock) -> None:
        super().configure(config, clock)
        self._works_ahead = self.distances and config.fit.final_evaluation

    def accelerate(self, kernels: Kernels) -> None:
        super().accelerate(kernels)
        if self.generated_molecules is not None:
            self.generated_molecules.fast_discrepancy = fast.discrepancy_by(kernels)

    def setup(self, stage: str) -> None:
        self.bind_data(self.trainer.datamodule)  # type: ignore[attr-defined]
        if stage == "fit" and self.trainer.is_global_zero:
            lr = getattr(self.make_optimizer, "keywords", {}).get("lr", 0.0)
            note = divergence_note(self.network.bond_flow, lr)
            if note is not None:
                print(note)

    def bind_data(self, datamodule: MoleculeDataModule) -> None:
        """Gives the network as many atom classes as the data have. Raises UserError where it was trained for others."""
        molecules: MoleculeDataModule = self.check_datamodule(datamodule)
        molecules.setup("bind_data")
        assert molecules.data is not None
        if self.distances and (held_out := len(molecules.data.valid_index)) < 2:
            few = f"and the data have {held_out}; hold out more, or leave it false"
            raise UserError(f"model.task.distances=true needs two held-out molecules or more, {few}")
        vocabulary = molecules.data.vocabulary
        self._check_vocabulary(vocabulary)
        if vocabulary.num_classes != self.network.num_atom_classes:
            self.take_network(self.network.with_atom_classes(vocabulary.num_classes).to(self.device))
        self.elements = vocabulary.elements
        if self.generated_molecules is not None:
            most = torch.from_numpy(molecules.data.most_bonds()).float().to(self.device)
            self.register_buffer("most_bonds", most, persistent=False)
        if self.model_config is not None:
            self.model_config["task"]["elements"] = self.elements
            self.model_config["task"]["network"]["num_atom_classes"] = vocabulary.num_classes

    def _check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Raises UserError where the weights are for molecules of another size, or know other elements."""
        size = self.network.max_atoms
        if vocabulary.max_atoms != size:
            raise UserError(
                f"the data have molecules of up to {vocabulary.max_atoms} atoms, the network is for {size}; "
                "give datamodule.source.max_atoms and model.task.network.max_atoms the same number"
            )
        if self.elements is not None and self.elements != vocabulary.elements:
            raise UserError(
                f"the data have the elements {', '.join(vocabulary.elements)}, the network was trained with "
                f"{', '.join(self.elements)}; give datamodule.source.elements=[{','.join(self.elements)}]"
            )

    @property
    def vocabulary(self) -> Vocabulary:
        """The atom classes that the weights know. Raises UserError if neither they nor their number tell."""
        if self.elements is not None:
            return of_elements("the checkpoint", self.elements, self.network.max_atoms)
        return vocabulary_of(self.network)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        if self.generated_molecules is None:
            bits_atom, bits_bond = self.network.bits_per_dim(self.network(*batch))
            return {"loss": bits_atom + bits_bond, "bits_atom": bits_atom, "bits_bond": bits_bond}
        with kept_statistics(self.network):
            of_batch, of_drawn, of_padding = self._uses(3)
            with of_batch:
                bits_atom, bits_bond = self.network.bits_per_dim(self.network(*batch))
            with of_drawn:
                generated = self.generated_molecules(self.network, *batch, self.most_bonds, of_padding)
        loss = bits_atom + bits_bond + generated["penalty"]
        return {"loss": loss, "bits_atom": bits_atom, "bits_bond": bits_bond, **generated}

    def _uses(self, count: int) -> Sequence[AbstractContextManager[None]]:
        """Returns `separate_uses` of the network; several ranks average gradients during the backward pass instead."""
        if distributed.is_available() and distributed.is_initialized():
            return [nullcontext()] * count
        return separate_uses(self.network, count)

    def count(self, batch: Batch) -> int:
        return len(batch[0])

    def cost(self) -> Cost:
        return cost(self.network, self.batch_size, self.activation_bytes, self.updates)

    def example_batch(self, size: int) -> Batch:
        atoms, classes = self.network.max_atoms, self.network.num_atom_classes
        nodes = torch.randint(1, classes, (size, atoms), dtype=torch.uint8)
        upper = torch.randint(0, self.network.num_bond_classes, (size, atoms, atoms), dtype=torch.uint8).triu(1)
        return nodes.to(self.device), (upper + upper.transpose(1, 2)).to(self.device)

    def on_train_start(self) -> None:
        super().on_train_start()
        if self._works_ahead and self.trainer.is_global_zero:
            self._ahead = features_ahead(self.trainer.datamodule.data, self.final_molecules)  # type: ignore[attr-defined]

    def compile_network(self) -> None:
        self.network.compile_steps(dynamic=False)

    def prepare_first_step(self, batches: Sequence[Batch]) -> None:
        nodes, edges = (torch.cat(part) for part in zip(*batches, strict=True))
        self.network.initialize(nodes, edges, self.count(batches[0]))  # nothing after a resume

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = (checkpoint.get("model_config") or {}).get("task", {}).get("network", {}).get("logdet")
        key = "model.task.network.logdet="
        if (trained, self.network.logdet) == ("exact", "published"):
            raise UserError(
                f"the checkpoint was trained with {key}exact, which keeps no BatchNorm statistics of rows that only "
                f"{key}published reads; give {key}exact, or start anew without ckpt_path"
            )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if molecules := self.count(batch):  # a rank's only batch may be empty
            with eagerly():  # as in `generate`: a compilation takes longer than the batches of many evaluations
                bits = torch.stack(self.network.likelihood(*batch)).double()
            self._held_out.append(torch.cat([molecules * bits, bits.new_full((1,), molecules)]))

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self._judge(self.eval_batch)

    def on_test_epoch_end(self) -> None:
        chosen = self._choose_temperature() if self.temperatures else {}
        smiles = self._judge(self.final_molecules)
        self.metrics |= chosen
        datamodule: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        rows = torch.from_numpy(datamodule.data.train_index[: self.reconstructed])
        if len(rows):
            self.metrics["reconstruction"] = self._reconstruction(datamodule, rows)
        if self.distances:
            self.metrics |= self._distances([text for text in smiles if text is not None])
        if self.trainer.is_global_zero and self.output_dir is not None:
            self.artifacts |= picture_of(smiles, self.scorer(), self.output_dir / "molecules.png")
            self.artifacts |= self._judge_of_data().picture(smiles, self.output_dir / "properties.png")

    def _choose_temperature(self) -> dict[str, float]:
        """Takes the best of `self.temperatures`, on every rank; returns it as metrics."""
        scores = dict[Temperature, float]()
        for temperature in self.temperatures:
            self.temperature = temperature
            smiles = self._drawn(self.eval_batch)
            scores[temperature] = self.scorer().score(smiles, len(smiles), pool=len(smiles))["pool_nuv"]
        self.temperature = max(scores, key=scores.__getitem__)
        pair = (self.temperature,) * 2 if isinstance(self.temperature, int | float) else self.temperature
        return dict(zip(("temperature", "bond_temperature"), pair, strict=True))

    def _drawn(self, count: int) -> list[str | None]:
        """Generates `count` molecules over all ranks; returns their SMILES on every rank."""
        world, rank = self.trainer.world_size, self.trainer.global_rank
        scorer = self.scorer()
        mine = len(range(rank, count, world))
        # The workers build molecules while the next batch is generated.
        pending = [
            scorer.build(*self.generate(size), correct_validity=self.correct_validity)
            for size in pieces(mine, self.sample_batch)
        ]
        smiles = [text for batch in pending for text in batch.result()]
        if world > 1:
            parts: list[Any] = [None] * world
            distributed.all_gather_object(parts, smiles)
            smiles = [text for part in parts for text in part]
        return smiles

    def _judge(self, count: int) -> list[str | None]:
        """Generates `count` molecules over all ranks and sets `self.metrics` on every rank; returns their SMILES."""
        smiles = self._drawn(count)
        self.metrics = self._held_out_bits() | self.scorer().score(smiles, self.sample_batch, pool=POOL)
        return smiles

    def _held_out_bits(self) -> dict[str, float]:
        """Returns bits per dimension, mean over the held-out molecules of all ranks."""
        total = torch.stack([torch.zeros(3, dtype=torch.float64, device=self.device), *self._held_out]).sum(0)
        self._held_out = []
        if self.trainer.world_size > 1:  # a rank without a molecule takes part all the same
            distributed.all_reduce(total)
        atom, bond, molecules = total.tolist()
        return {"val_bits_atom": atom / molecules, "val_bits_bond": bond / molecules}

    def _distances(self, smiles: list[str]) -> dict[str, float]:
        """Returns distances from the held-out molecules, of `smiles` and of real ones; nothing for fewer than two."""
        distances: list[dict[str, float]] = [{}]
        if self.trainer.is_global_zero and len(smiles) > 1:
            judge = self._judge_of_data()
            distances = [judge.distances(smiles) | judge.floor(len(smiles))]
        if self.trainer.world_size > 1:
            distributed.broadcast_object_list(distances)
        return distances[0]

    def _judge_of_data(self) -> Judge:
        return Judge(self.trainer.datamodule.data, self.scorer(), self.device, self._ahead)  # type: ignore[attr-defined]

    def _reconstruction(self, datamodule: MoleculeDataModule, rows: Int64[Tensor, " molecules"]) -> float:
        """Returns the percentage of these molecules that encoding and decoding reproduce, in full float32."""
        same = 0
        with exact_products(self.device):
            for part in rows.split(self.sample_batch):
                nodes, edges = datamodule.rows(part)
                nodes_again, edges_again = self.network.reconstruct(nodes, edges)
                whole = (nodes_again == nodes).all(1) & (edges_again == edges).flatten(1).all(1)
                same += int(whole.sum())
        return 100 * same / len(rows)

    def _split_evaluated(self, job: PredictionJob, split: str) -> Prediction:
        """Returns bits per dimension and reconstruction of the first `num_samples` molecules of a split."""
        datamodule: MoleculeDataModule = self.check_datamodule(job.datamodule())
        datamodule.device = self.device
        datamodule.setup("predict")
        assert datamodule.data is not None
        self.elements = self.vocabulary.elements  # also of a checkpoint that names none
        self._check_vocabulary(datamodule.data.vocabulary)
        count = min(job.num_samples or len(datamodule.splits[split]), len(datamodule.splits[split]))
        rows = torch.from_numpy(np.asarray(datamodule.splits[split][:count]))
        bits = torch.zeros(2, dtype=torch.float64)
        for part in rows.split(job.batch_size):
            likelihood = self.network.likelihood(*datamodule.rows(part))
            bits += len(part) * torch.stack([values.double().cpu() for values in likelihood])
        atom, bond = (bits / count).tolist()
        words = split_in_words(count, "molecules", split, count * (job.has_trained_data and split == "train"))
        same = self._reconstruction(datamodule, rows)
        quality = [
            Quality("bits_atom", atom, "bits", f"per dimension of the atoms, {words}"),
            Quality("bits_bond", bond, "bits", f"per dimension of the bonds, {words}"),
            Quality("reconstruction", same, "%", f"the same after encoding and decoding, {words}"),
        ]
        judged = FinalMetric("bits_atom", "min", None).record(atom)
        return Prediction(count, [], {}, judged, quality=quality)

    @torch.no_grad()
    def generate(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns a batch of generated molecules, as uint8 classes on the host."""
        with eagerly():  # a compilation would serve a few dozen batches at most
            nodes, edges = self.network.sample(size, self.temperature)
        return nodes.cpu().numpy(), edges.cpu().numpy()

    def scorer(self) -> Scorer:
        """Returns worker processes that know the training molecules; starts them at the first evaluation."""
        if self._scorer is None:
            data: MolecularData = self.trainer.datamodule.data  # type: ignore[attr-defined]
            published, canonical = ({texts[i] for i in data.train_index} for texts in (data.published, data.canonical))
            self._scorer = Scorer(data.vocabulary, published, canonical)
        return self._scorer

    def teardown(self, stage: str) -> None:
        super().teardown(stage)
        if self._scorer is not None:
            self._scorer.close()
            self._scorer = None
        # Lightning calls this after training, too, before it says that the training has stopped.
        if self._ahead is not None and (stage != "fit" or self.trainer.state.stopped):
            self._ahead.close()
            self._ahead = None

    def exported(self) -> Export:
        return exported(self.network, self.vocabulary, self.temperature)

    def predictor(self, inference: Inference) -> MoleculeGenerator:
        choices = self.temperature, self.correct_validity
        return MoleculeGenerator(self.network, self.vocabulary, *choices, self.device, inference)

    def predict(self, job: PredictionJob, clock: Clock) -> Prediction:
        """Generates molecules; see `src.models.moflow.generate`. An evaluation is of a split's likelihood instead."""
        if job.split is not None:
            return self._split_evaluated(job, job.split)
        options: Options = job.options
        if options.temperature is None:
            options = replace(options, temperature=self.temperature)
        if options.correct_validity is None:
            options = replace(options, correct_validity=self.correct_validity)
        return generate_molecules(self.network, self.vocabulary, job, options, clock)


def pieces(total: int, size: int) -> list[int]:
    """Returns sizes of at most `size` that add up to `total`."""
    return [min(size, total - start) for start in range(0, total, size)]
