"""`python -m ninefold finders`: a learning rate for a job, or the largest batch that fits."""
