"""Measure which parallel strategy and which precision to train with, and train with the answer."""

__version__ = "0.1.0"
