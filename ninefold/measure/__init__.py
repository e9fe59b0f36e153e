"""Measurements of a run and of the machine: times, memory, energy, numerics.

Public: `clock.Clock`, `profiler.Profile`, `numerics.Numerics`, `devices.meter`.
"""
