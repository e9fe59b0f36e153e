"""Measurements of a run and of the machine: times, memory, numerics.

Public: `clock.Clock`, `profiler.Profile`, `numerics.Numerics`, `devices.Load`.
"""
