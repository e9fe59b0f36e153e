"""Answers on more processes, larger batches and other values, for studies that swept these."""
