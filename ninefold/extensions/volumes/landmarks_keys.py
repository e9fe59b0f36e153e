"""The keys of task=landmarks alone."""

from ninefold.extensions.volumes.volumes_keys import Spacing
from ninefold.types import Positive, Section


class LandmarksKeys(Section, kw_only=True):
    spacing: Spacing | None
    """Millimeters between voxels along z, y, x: dataset.spacing."""
    sigma: Positive = 4.0
    """Standard deviation in mm of the Gaussian heatmaps of landmarks."""
    within: Positive = 4.0
    """Error in mm up to which a landmark counts for the score."""
