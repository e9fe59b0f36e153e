"""Answers on more processes and on larger batches, for studies that swept these."""
