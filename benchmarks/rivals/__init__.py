"""Alternatives to train with: the raw loop, the published one, and frameworks.

Each is written as in its documentation, with its fastest settings.
"""
