"""What a run measures of itself and of the machine: times, memory, energy, numerics.

Public: `clock.Clock`, `profiler.Profile`, `numerics.Numerics`, `devices.meter`.
"""
