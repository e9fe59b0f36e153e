"""NIfTI volumes in folders, with landmarks in a JSON file or with masks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ninefold.dataset import Dataset, Examples, Split
from ninefold.dataset.images import ImageTree, listed, spread
from ninefold.dataset.masks import ClassNumbers, require_classes
from ninefold.errors import ConfigError, DataError
from ninefold.extensions.volumes.labels import LabelFiles, labels_of
from ninefold.extensions.volumes.nifti import TOPS, VolumeFiles, nibabel
from ninefold.extensions.volumes.points import Points
from ninefold.files import read_text
from ninefold.numbers import counted
from ninefold.progress import bar

POINTS = ("landmarks.json", "all_landmarks_voxel.json")  # the first that is there is read
MASKS = "labelsTr"
HOLDS = (
    "imagesTr/CASE_0000.nii.gz, landmarks.json or labelsTr/CASE.nii.gz, and imagesTs or test.txt"
)
NAME = re.compile(r"(.+)_(\d{4})\.nii(\.gz)?")
CHOICES = {"order": ("xyz", "zyx"), "unit": ("voxel", "mm"), "dtype": tuple(TOPS)}
ONLY_FOR = {"landmarks": "landmarks", "ignore": "masks", "class_names": "masks"}  # options
Cases = dict[str, tuple[str, ...]]  # the files of a case, one for each channel


@dataclass(frozen=True)
class Volumes(Dataset):
    """Volumes root/imagesTr/CASE_0000.nii.gz with root/landmarks.json or root/labelsTr/CASE.nii.gz.

    The JSON is {case: {name: [x, y, z]}}; a name that a case does not have is absent in it. The
    masks, see LabelFiles, hold class numbers from 0, which is the background.
    The test split is the cases listed in root/test.txt, one a line, or else those of root/imagesTs,
    whose masks are in root/labelsTs. Channel c of a case is CASE_000c. `limit` takes training cases
    evenly spaced by name.

    classes: the number of landmarks, or of classes with the background.
    ignore: the number of a mask's voxels that do not count (void); None: all count.
    shape: channels, depth, height, width of the prepared volume.
    spacing: mm between its voxels along z, y, x.
    unit: voxels are counted from 0, fractions allowed; mm are as the header's affine gives them.
    """

    root: str | None = None
    classes: int = 1
    targets: Literal["landmarks", "masks"] | None = None
    ignore: int | None = None
    class_names: Sequence[str] | None = None
    shape: Sequence[int] = (1, 96, 96, 96)
    spacing: Sequence[float] = (2.0, 2.0, 2.0)
    order: Literal["xyz", "zyx"] = "xyz"
    unit: Literal["voxel", "mm"] = "voxel"
    landmarks: Sequence[str] | None = None
    window: Sequence[float] | None = None
    dtype: Literal["int16", "uint8"] = "int16"
    # Done with images only: a mirrored volume would exchange left and right landmarks.
    flip: bool = field(default=False, init=False)
    crop: int = field(default=0, init=False)
    mean: None = field(default=None, init=False)
    std: None = field(default=None, init=False)

    def prepare(self) -> None:
        """Check options, files, all landmarks, the headers of all and the voxels of some files.

        What remains is found when a volume or a mask is decoded. Raises DataError, ConfigError.
        """
        nibabel()
        self._require_options()
        points = self._points()
        names = points.names() if points else []
        splits: tuple[Split, ...] = ("train", "test")
        found = {split: self._cases(split) for split in splits}
        cases = [files for part in found.values() for files in part.values()]
        labels = [self._labels(split, found[split]) for split in splits]
        masks = self._masks(list(itertools.chain(*labels)))
        self._tree.require_readable([*itertools.chain(*cases), *masks.paths])
        volumes = self._volumes(cases)
        rows = bar(enumerate(masks.paths), "reading headers", len(masks), unit="case", delay=1.0)
        for row, path in rows:
            masks.require_fit(path, cases[row][0], volumes.grid(row))
        if points is not None:
            for part in found.values():
                points.targets(list(part), self._volumes(list(part.values())), names)
        some = 8  # each may take a second
        for files in bar(spread(cases, some), "opening volumes", unit="case", delay=1.0):
            volumes.decoded(files)
        for path in bar(spread(masks.paths, some), "opening masks", unit="mask", delay=1.0):
            masks.decoded(path)

    def load(self, split: Split) -> Examples:
        self._require_options()
        cases, points = self._read(split), self._points()
        volumes = self._volumes(list(cases.values()))
        if points is None:
            masks = self._masks(self._labels(split, cases))
            return Examples(volumes, masks, tuple(self.class_names or ()))
        names = points.names()
        return Examples(volumes, points.targets(list(cases), volumes, names), tuple(names))

    def sources(self, split: Split) -> Sequence[str]:
        cases, points = self._read(split), self._points()
        volumes = itertools.chain(*cases.values())
        return [*volumes, *([str(points.path)] if points else self._labels(split, cases))]

    @property
    def _tree(self) -> ImageTree:
        usable = "whole NIfTI files of one volume, with spacing and orientation, are"
        return ImageTree(self.root, HOLDS, "volume", usable)

    def _volumes(self, paths: Sequence[tuple[str, ...]]) -> VolumeFiles:
        how = self.spacing, self.window, self.dtype
        return VolumeFiles(paths, tuple(self.shape), *how, self._tree)

    def _masks(self, paths: Sequence[str]) -> LabelFiles:
        size = tuple(self.shape[1:])
        return LabelFiles(paths, size, self._tree, self._numbers, self.spacing)

    @property
    def _numbers(self) -> ClassNumbers:
        require_classes(self.classes)
        return ClassNumbers(self.classes, self.ignore)

    def _labels(self, split: Split, cases: Cases) -> list[str]:
        """The mask of each of these cases of a split; none where they have landmarks."""
        if self._points() is not None:
            return []
        chosen = (self._tree.path / "test.txt").is_file()
        end = "Ts" if split == "test" and not chosen else "Tr"
        return labels_of(self._tree, f"labels{end}", list(cases))

    def _read(self, split: Split) -> Cases:
        cases = self._cases(split)
        return {case: cases[case] for case in spread(list(cases), self.limit_of(split))}

    def _cases(self, split: Split) -> Cases:
        """The files of the cases of a split, in the order of their names. Raises DataError."""
        listing = self._tree.path / "test.txt"
        separate = self._tree.path / "imagesTs"
        if not listing.is_file():
            if split == "test" and not separate.is_dir():
                raise self._tree.wrong(
                    "it holds no test split",
                    f"looked for test.txt and the folder imagesTs in {self._tree.path}",
                    "list the cases to test on in test.txt, one a line",
                )
            return self._folder("imagesTs" if split == "test" else "imagesTr")
        cases = self._folder("imagesTr")
        try:
            lines = read_text(listing, most=1 << 26).splitlines()  # a million cases
        except (OSError, ValueError) as error:
            raise self._tree.wrong(
                f"{listing} cannot be read",
                getattr(error, "strerror", None) or "it is no text in UTF-8",
                "write the name of a case on each line",
            ) from error
        chosen = {line.strip() for line in lines} - {""}
        if unknown := chosen - set(cases):
            raise self._tree.wrong(
                f"{listing} lists {listed(unknown)}",
                f"the cases in imagesTr are {listed(cases)}",
                "correct test.txt",
            )
        if not chosen or len(chosen) == len(cases):
            raise self._tree.wrong(
                f"{listing} lists {'all' if chosen else 'none'} of {counted(len(cases), 'case')}",
                "some must be there to test on and others to train on",
                "correct test.txt",
            )
        return {case: cases[case] for case in cases if (case in chosen) == (split == "test")}

    def _folder(self, name: str) -> Cases:
        """The files of the cases in a folder. Raises DataError."""
        folder = self._tree.path / name
        if not folder.is_dir():
            raise self._tree.wrong(
                f"it holds no folder {name}",
                self._tree.listing(self._tree.path),
                f"it must hold {HOLDS}",
            )
        found: dict[str, dict[int, str]] = {}
        others = []
        for entry in self._tree.entries(folder):
            match = NAME.fullmatch(entry.name)
            if match is None:
                others.append(entry.name)
                continue
            channels = found.setdefault(match[1], {})
            other = channels.setdefault(int(match[2]), entry.path)
            if other != entry.path:
                raise self._tree.wrong(
                    f"{other} and {entry.path} are one channel of one case",
                    "one file for each is allowed",
                    "remove one of them",
                )
        unnumbered = [other for other in others if other.endswith((".nii", ".nii.gz"))]
        if unnumbered or not found:
            raise self._tree.wrong(
                f"no channel number in the name of {min(unnumbered)}"
                if unnumbered
                else f"no volumes in {folder}",
                f"found {listed(others)}",
                "names such as CASE_0000.nii.gz are looked for; rename the files",
            )
        for case, channels in found.items():
            if sorted(channels) != list(range(self.shape[0])):
                wrong = f"{case} in {folder} has the channels {listed(map(str, channels))}"
                allowed = f"{self.shape[0]}, numbered from 0000, are wanted"
                do = "correct the first number of dataset.shape, or the files"
                raise DataError("dataset.shape", list(self.shape), wrong, allowed, do)
        return {case: tuple(found[case][c] for c in range(self.shape[0])) for case in sorted(found)}

    def _points(self) -> Points | None:
        """Where the landmarks are; None if the targets are masks. Raises DataError, ConfigError."""
        root = self._tree.path
        file = next((root / name for name in POINTS if (root / name).is_file()), None)
        masks = (root / MASKS).is_dir()
        if self.targets is None and file is not None and masks:
            wrong = f"{root} holds both {file.name} and {MASKS}"
            do = "set dataset.targets to what the task is trained on"
            raise ConfigError("dataset.targets", "null", wrong, "landmarks or masks is allowed", do)
        kind = self.targets or ("masks" if masks else "landmarks")
        self._require_options_of(kind)
        if kind == "masks":
            return None
        if file is None:
            raise self._tree.wrong(
                f"it holds no landmarks{', only masks in ' + MASKS if masks else ' and no masks'}",
                f"looked for {', '.join(POINTS)} and {MASKS} in {root}",
                self._tree.elsewhere(
                    lambda folder: (folder / "imagesTr").is_dir(),
                    "write landmarks.json: {case: {name: [x, y, z]}}, or put masks of the cases as "
                    f"CASE.nii.gz into {MASKS}",
                ),
            )
        return Points(
            file, self._tree, self.shape, self.spacing, self.classes, self.landmarks, self.order,
            self.unit,
        )  # fmt: skip

    def _require_options_of(self, kind: str) -> None:
        """Raise ConfigError if an option does not go with targets of this kind."""
        for key, only in ONLY_FOR.items():
            if only != kind and getattr(self, key) is not None:
                wrong = f"the targets are {kind}"
                allowed = f"it goes with {only}"
                do = f"leave it out, or set dataset.targets={only}"
                raise ConfigError(f"dataset.{key}", getattr(self, key), wrong, allowed, do)
        if kind == "masks":
            self._numbers.require_usable()

    def _require_options(self) -> None:
        """Raise DataError or ConfigError if an option cannot be used.

        VolumesKeys checks a command's, but not those of a class of the user's that has this base.
        """
        for key, choices in CHOICES.items():
            if (value := getattr(self, key)) not in choices:
                allowed, do = f"{' or '.join(choices)} is allowed", f"correct dataset.{key}"
                given = "null" if value is None else value
                raise ConfigError(f"dataset.{key}", given, "not allowed", allowed, do)
        if len(self.shape) != 4:
            wrong = "volumes cannot be made so"
            allowed = "[channels, depth, height, width] is allowed"
            do = "correct dataset.shape"
            raise DataError("dataset.shape", list(self.shape), wrong, allowed, do)
        for key, of in (("landmarks", "landmark"), ("class_names", "class")):
            names = getattr(self, key)
            if names is not None and (count := len(set(names))) != self.classes:
                wrong = f"it lists {counted(count, 'name')}, dataset.classes={self.classes}"
                allowed = f"one for each {of} is allowed"
                do = f"correct dataset.{key} or dataset.classes"
                raise ConfigError(f"dataset.{key}", list(names), wrong, allowed, do)
