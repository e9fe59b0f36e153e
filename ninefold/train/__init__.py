"""Training and evaluation in a worker process. Start reading at `loop.train`.

Public: `run.train(spec, stop)`, `evaluate.evaluate(spec)`, `training.Training`, `loop.train`.
"""
