"""The location of the turns of a process."""

from statistics import fmean as location

__all__ = ["location"]
