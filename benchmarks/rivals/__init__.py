"""Alternatives to train with: the raw loop, frameworks, and a pipeline of images.

Each is written as in its documentation, with its fastest settings.
"""
