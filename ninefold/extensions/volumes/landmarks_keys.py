"""The keys of task=landmarks alone."""

from ninefold.types import Positive, Section


class LandmarksKeys(Section, kw_only=True):
    sigma: Positive = 4.0
    """Standard deviation in mm of the Gaussian heatmaps of landmarks."""
    within: Positive = 4.0
    """Error in mm up to which a landmark counts for the score."""
