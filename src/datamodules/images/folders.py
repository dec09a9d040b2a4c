"""Folders of image files: ImageNet's layout (train/CLASS/FILE, val/CLASS/FILE), and files without classes."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8
from torch import distributed

from src.config.ranges import Count, OpenShare, Seed
from src.datamodules.base import PUBLISHED
from src.datamodules.fingerprint import CONTENT, hash_of, of_many_files
from src.datamodules.images.base import ImageDataModule
from src.datamodules.images.check import UNDECODABLE, Check, contents, range_note, verdicts
from src.datamodules.images.decode import centre_box, decode, decoded, resized
from src.datamodules.images.listing import classes_in, is_ignored, labelled, unlabelled, why_no_image
from src.datamodules.images.loader import DecodingLoader, ImageFiles, Unreadable
from src.datamodules.images.rendering import AS_STORED, Pixels, Rendering
from src.datamodules.splits import TRAIN, Splits, random_split, shared_with_train, stratified_split
from src.errors import UserError
from src.measure.reading import Reading
from src.system.workers import cpu_count

WITH_ALL_RANKS = ("fit", "validate", "test")  # stages of `setup`


class _DecodedDataModule(ImageDataModule):
    """Images that threads decode from files during training.

    Args:
        data_dir: the folder.
        threads: decoding threads; the machine's cores divided by its ranks if not given.
        prefetch: batches decoded ahead.
        background, value_range: see Rendering. Published images are decoded as they are stored.
        check: before training `headers` reads the beginning and end of every file; `all` decodes every file.
        options: as for ImageDataModule.
    """

    def __init__(
        self,
        *,
        data_dir: str,
        threads: Count | None = None,
        prefetch: Count = 4,
        background: str = "white",
        value_range: Sequence[float] | None = None,
        check: Check = "headers",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.threads = max(1, cpu_count() // ranks_here) if threads is None else threads
        self.data_dir, self.prefetch = Path(data_dir), prefetch
        self.check: Check = check
        self.is_published = self.name in PUBLISHED
        rendering = Rendering(background, None if value_range is None else tuple(map(float, value_range)))
        self.rendering = AS_STORED if self.is_published else rendering
        self.unreadable = None if self.is_published else Unreadable()
        self.files: dict[str, ImageFiles] = {}
        self._is_agreed = False

    def loader(self, split: str, /, *, train: bool = False, batch_size: int | None = None) -> DecodingLoader:
        self.check_split(split)
        return DecodingLoader(
            self.files[split],
            batch_size or self.test_batch_size,
            size=self.image_size,
            train=train,
            threads=self.threads,
            prefetch=self.prefetch,
            device=self.target_device,
            clock=self.clock,
            rendering=self.rendering,
            unreadable=self.unreadable,
            **self.order,
        )

    def evaluated(self, data: bytes, name: str) -> UInt8[np.ndarray, "size size 3"]:
        return decoded(name, lambda: decode(data, self.image_size, rendering=self.rendering))

    def fitted(self, pixels: Pixels) -> UInt8[np.ndarray, "size size 3"]:
        """Returns the centre, as of ImageNet's evaluation images."""
        return resized(pixels, centre_box(pixels.shape[1], pixels.shape[0]), self.image_size)

    def file_names(self, split: str) -> Sequence[str]:
        return self.files[split].files

    def unreadable_rows(self, split: str) -> list[int]:
        """Returns the rows of a split that could not be decoded so far, and tells of them in the reading."""
        self.teardown("predict")
        images = self.files[split]
        failed = self.unreadable.reasons if self.unreadable else {}
        return [row for row, name in enumerate(images.files) if images.folder / name in failed]

    def checked(
        self, images: ImageFiles, others: Sequence[str], reading: Reading, every_class: bool = True
    ) -> ImageFiles:
        """Returns the images that can be read; adds to the reading what was read, changed and dropped.

        Raises UserError if none can be read, and with `every_class` if none of some class can.
        """
        paths = [images.folder / name for name in images.files]
        reading.read += len(paths) + len(others)
        for name in others:
            reading.drop(why_no_image(name), self.shown(images.folder / name))
        results = verdicts(paths, self.rendering, self.check, self.threads)
        if len(results) < len(paths):
            reading.notes.append(
                f"{len(results):,} of {len(paths):,} files were checked before training; datamodule.check=all "
                "decodes every one"
            )
        for number, verdict in results.items():
            name = self.shown(paths[number])
            if verdict.problem is None:
                reading.change(verdict.changes, name)
            else:
                reading.drop(verdict.why, f"{name}: {verdict.problem}")
        kinds = Counter(verdict.kind for verdict in results.values() if verdict.kind and not verdict.problem)
        if kinds:
            shown = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
            reading.notes.append(f"{shown}: made RGB without a loss")
        deep = [paths[number] for number, verdict in results.items() if verdict.is_16_bit and not verdict.problem]
        if note := range_note(deep, self.rendering):
            reading.notes.append(note)
        kept = images.part([row for row in range(len(paths)) if row not in results or results[row].problem is None])
        lost = sorted(set(images.labels.tolist()) - set(kept.labels.tolist()))
        if lost and (every_class or not kept.files):
            rows = np.flatnonzero(images.labels == lost[0]).tolist()
            path = paths[rows[0]]
            raise UserError(
                f"none of the {len(rows)} images in {path.parent} can be read, as {path}: {results[rows[0]].problem}"
            )
        return kept

    def shown(self, path: Path) -> str:
        """Returns the name of a file below `data_dir`."""
        return os.path.relpath(path, self.data_dir)

    def agree(self, stage: str) -> None:
        """Takes the files of rank 0: a file that another rank could not read must not put the ranks out of step."""
        if stage not in WITH_ALL_RANKS or self._is_agreed:
            return
        self._is_agreed = True
        if not self.is_published and self.rank_and_world[1] > 1:
            files: list[Any] = [self.files]
            distributed.broadcast_object_list(files, 0)
            self.files = files[0]
            self.splits = {split: len(images.files) for split, images in self.files.items()}

    def teardown(self, stage: str) -> None:
        """Adds to the reading the files that any rank could not decode while batches were loaded."""
        if self.unreadable is None or self.reading is None:
            return
        world = self.rank_and_world[1]
        reasons: list[Any] = [self.unreadable.reasons]
        if world > 1 and stage in WITH_ALL_RANKS:
            reasons = [None] * world
            distributed.all_gather_object(reasons, self.unreadable.reasons)
        for path, instead in sorted({path: why for part in reasons for path, why in part.items()}.items()):
            if path not in self.unreadable.told:
                self.unreadable.told.add(path)
                self.reading.drop(f"found later that it {UNDECODABLE}: {instead}", self.shown(path))


class ImageFolderDataModule(_DecodedDataModule):
    """One folder a class in `train` and in `val`; the folders have the names of the classes.

    Args:
        train, val: folders in `data_dir`; the Paddle harness gives the same one for both. Without a folder `val`
            images of `train` are held out.
        split: how they are chosen: `stratified` by class, or `random`. Equal files stay on one side.
        held_out_share: of the images.
        split_seed: of the choice.
        options: as for ImageDataModule, and `data_dir`, `threads`, `prefetch`, `background`, `value_range` and `check`.
    """

    def __init__(
        self,
        *,
        train: str = "train",
        val: str | None = "val",
        split: Literal["stratified", "random"] = "stratified",
        held_out_share: OpenShare = 0.1,
        split_seed: Seed = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.folders = {"train": train, "val": val}
        self.split, self.held_out_share, self.split_seed = split, held_out_share, split_seed

    def prepare_data(self) -> None:
        self.setup("prepare")

    def setup(self, stage: str) -> None:
        """Lists and checks the files. Raises UserError for missing or empty folders, and if the classes differ."""
        if not self.files:
            folders = self.existing_folders()
            names = self.shared_classes(folders)
            self.check_classes(names, folders["train"])
            self.class_names = names
            listed = {folder: labelled(folder, names) for folder in folders.values()}
            if self.is_published:
                self.files = {split: listed[folder][0] for split, folder in folders.items()}
            else:
                reading = Reading(str(self.data_dir), "files")
                train = folders["train"]
                kept = {folder: self.checked(*files, reading, folder == train) for folder, files in listed.items()}
                self.files = self.with_held_out({split: kept[folder] for split, folder in folders.items()}, reading)
            self.splits = {split: len(images.files) for split, images in self.files.items()}
        self.agree(stage)

    def existing_folders(self) -> dict[str, Path]:
        """Returns the folder of each split; `train` alone where `val` is to be held out of it.

        Raises UserError for a missing `val` beside a folder that may be meant.
        """
        train, val = self.data_dir / str(self.folders["train"]), self.folders["val"]
        if val is not None and (self.is_published or (self.data_dir / val).exists()):
            return {"train": train, "val": self.data_dir / val}
        if val is not None and train.is_dir() and train.resolve() != self.data_dir.resolve():
            classes = set(classes_in(train))
            for entry in sorted(self.data_dir.iterdir()):
                if not entry.is_dir() or is_ignored(entry.name) or entry.resolve() == train.resolve():
                    continue
                if classes & {part.name for part in entry.iterdir()}:
                    raise UserError(
                        f"{self.data_dir} has no folder {val}: give datamodule.val={entry.name}, or "
                        f"datamodule.val=null to hold out images of {train.name}"
                    )
        return {"train": train}

    def shared_classes(self, folders: dict[str, Path]) -> list[str]:
        """Returns the names of the classes. Raises UserError if those of the splits differ."""
        names = {split: classes_in(folder) for split, folder in folders.items()}
        unshared = sorted(set(names["train"]) ^ set(names.get("val", names["train"])))
        if unshared:
            having, lacking = (folders[s] for s in sorted(names, key=lambda s: unshared[0] not in names[s]))
            raise UserError(
                f"{having / unshared[0]} is a class that {lacking} does not have: both need the same class folders"
            )
        return names["train"]

    def with_held_out(self, files: dict[str, ImageFiles], reading: Reading) -> dict[str, ImageFiles]:
        """Returns the images of both splits, those to evaluate held out where there are none; tells of the splits."""
        parts = list(files.values())
        same = contents([images.folder / name for images in parts for name in images.files], self.threads)
        if "val" in files:
            begin = len(files["train"].files)
            rows: Splits = {"train": np.arange(begin), "val": np.arange(begin, begin + len(files["val"].files))}
            reading.split = f"the folders {self.folders['train']} and {self.folders['val']}"
        else:
            images = files["train"]
            rows = self.held_out(images.labels.tolist(), same)
            if not len(rows["val"]):
                raise UserError(
                    f"{self.data_dir} has no folder {self.folders['val'] or 'val'}, and too few images in "
                    f"{images.folder} to hold one out: add images, or raise datamodule.held_out_share"
                )
            files = {split: images.part(rows[split].tolist()) for split in ("train", "val")}
            reading.split = (
                f"{self.split}, {self.held_out_share:g} of {self.folders['train']} held out with "
                f"datamodule.split_seed={self.split_seed}; equal files on one side"
            )
        if same is None:
            reading.notes.append("too many bytes in files of equal size: not searched for copies")
        else:
            reading.shared = shared_with_train(same, rows)
            self.note_copies(same, parts, reading)
        reading.splits = {split: len(images.files) for split, images in files.items()}
        assert self.class_names is not None
        for split, images in files.items():
            counts = np.bincount(images.labels, minlength=len(self.class_names)).tolist()
            reading.classes[split] = dict(zip(self.class_names, counts, strict=True))
        self.tell(reading.finish())
        return files

    def held_out(self, labels: Sequence[int], same: Sequence[str] | None) -> Splits:
        """Returns the rows of `train` and `val`; files of equal content are on one side."""
        keys = list(range(len(labels))) if same is None else same
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        chosen = sorted(first.values())
        shares = {"val": self.held_out_share}
        if self.split == "stratified":
            splits = stratified_split([labels[row] for row in chosen], shares, self.split_seed)
        else:
            splits = random_split(len(chosen), shares, self.split_seed)
        held_out = {chosen[number] for number in splits["val"].tolist()}
        is_val = np.array([first[key] in held_out for key in keys])
        return {TRAIN: np.flatnonzero(~is_val), "val": np.flatnonzero(is_val)}

    def note_copies(self, same: Sequence[str], parts: Sequence[ImageFiles], reading: Reading) -> None:
        """Notes equal files that stand in one split twice, or in two classes."""
        by_content: dict[str, dict[Path, int]] = {}
        places = ((images, row) for images in parts for row in range(len(images.files)))
        for key, (images, row) in zip(same, places, strict=True):
            by_content.setdefault(key, {})[images.folder / images.files[row]] = int(images.labels[row])
        copies = sum(len(labels) - 1 for labels in by_content.values())
        if copies:
            reading.notes.append(f"{copies:,} files are copies of another one, byte by byte")
        differing = [labels for labels in by_content.values() if len(set(labels.values())) > 1]
        if differing:
            names = " and ".join(self.shown(path) for path in list(differing[0])[:2])
            reading.notes.append(f"{len(differing):,} images stand in two classes, as {names}")

    def fingerprint(self) -> dict[str, Any]:
        parts = [of_many_files(images.folder, images.files, self.threads) for images in self.files.values()]
        return dict(self.splits) | {CONTENT: hash_of(parts)}


class ImageFilesDataModule(_DecodedDataModule):
    """Unlabelled images in a folder and its subfolders, for prediction."""

    def prepare_data(self) -> None:
        self.setup("prepare")

    def setup(self, stage: str) -> None:
        if stage == "fit":
            raise UserError("datamodule=image_files has no labels to train on; give datamodule=image_folder")
        if not self.files:
            reading = Reading(str(self.data_dir), "files")
            self.files = {"all": self.checked(*unlabelled(self.data_dir), reading)}
            self.splits = reading.splits = {"all": len(self.files["all"].files)}
            self.tell(reading.finish())
