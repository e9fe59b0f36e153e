"""`python -m ninefold finders`: a learning rate for a job, or the largest batch that fits."""

USAGE = "what=lr|batch_size [KEY=VALUE ...]: a learning rate, or the largest batch that fits"
