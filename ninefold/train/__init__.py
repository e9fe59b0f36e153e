"""Training and evaluation in a worker process, around `engine.loop.train`.

Public: `run.train(spec, stop)`, `evaluate.evaluate(spec)`, `build.running`.
"""
