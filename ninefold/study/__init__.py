"""Studies: sweeps in rounds with repetitions, their record on disk, and how they resume.

Public: `sweep.run` (a study), `sweep.finish` (the report of any sweep).
"""
