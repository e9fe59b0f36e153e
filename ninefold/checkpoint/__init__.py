"""Checkpoint files: written atomically and in the background, verified on loading.

Public: `store.Checkpoints`, `store.read`, `writer.AsyncWriter`, `weights.load_weights`, `manifest`.
"""
