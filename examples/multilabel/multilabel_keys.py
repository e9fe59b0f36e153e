"""The keys of task=multilabel alone."""

from ninefold.types import Section


class MultiLabelKeys(Section, kw_only=True):
    threshold: float | None
    """Output above which task=multilabel decides that a label holds; null: 0, or 0.5 with
    torch.nn.BCELoss."""
