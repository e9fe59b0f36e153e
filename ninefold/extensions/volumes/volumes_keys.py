"""The keys of dataset=volumes alone."""

from typing import Annotated, Literal

from msgspec import Meta

from ninefold.types import Allowed, If, Names, Positive, Section

Spacing = Annotated[
    list[Positive],
    Meta(min_length=3, max_length=3),
    Allowed("three numbers above 0, for z, y and x, are allowed"),
]
Window = Annotated[
    Annotated[list[float], Meta(min_length=2, max_length=2)] | None,
    Allowed("[low, high] with low below high, or null, is allowed"),
    If(lambda value: value is None or value[0] < value[1]),
]


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
    spacing: Spacing
    """Millimeters between the voxels of a prepared volume along z, y, x."""
    window: Window = None
    """Values of the files that become 0 and 1; null: the percentiles 0.5 and 99.5 of each."""
    dtype: Literal["int16", "uint8"] = "int16"
    """dtype of a volume until it is on the device."""
