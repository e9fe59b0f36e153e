"""The keys of parallel=fsdp alone."""

from ninefold.types import Count, FloatDtype, Section, Units, Whole


class FSDPKeys(Section, kw_only=True):
    replicas: Count = 1
    """Whole copies of the parameters, each spread over processes / replicas (HSDP)."""
    reshard_after_forward: bool = True
    """Drop gathered parameters after the forward pass and gather them again for the backward pass;
    false: more memory for a third less communication."""
    units: Units = "auto"
    """Submodules whose parameters are gathered together, apart from all others; auto: children of
    the network, and of lists in it, of at least `least` parameters."""
    least: Whole = 1_000_000
    """Parameters of a unit at least, with units=auto."""
    reduce_dtype: FloatDtype | None = None
    """dtype in which gradients are averaged over processes; null: their own."""
