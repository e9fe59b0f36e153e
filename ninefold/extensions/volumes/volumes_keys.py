"""The keys of dataset=volumes alone."""

from typing import Literal

from ninefold.types import Names, Section, Window


class VolumesKeys(Section, kw_only=True):
    targets: Literal["landmarks", "masks"] | None = None
    """What volumes have to be learned: landmarks (a JSON file) or masks (labelsTr); null: what
    dataset.root holds."""
    order: Literal["xyz", "zyx"] = "xyz"
    """Order of the three numbers of a landmark in the JSON file."""
    unit: Literal["voxel", "mm"] = "voxel"
    """Unit of a landmark in the JSON file: voxel (indices along the file's axes) or mm (right,
    anterior, superior)."""
    landmarks: Names = None
    """Names of the landmarks in their order; null: all in the JSON file, sorted."""
    window: Window = None
    """Values of the files that become 0 and 1; null: the percentiles 0.5 and 99.5 of each."""
    dtype: Literal["int16", "uint8"] = "int16"
    """dtype of a volume until it is on the device."""
