"""Measurements of a run and of the machine: load, profile, numerics, environment.

Public: `profiler.Profile`, `numerics.Numerics`, `devices.Load`, `environment.environment`.
"""
