"""Studies: sweeps in rounds, their record on disk, and how they resume.

Public: `sweep.planned` and `begun` (a study), `sweep.finish` (the report of any sweep).
"""
