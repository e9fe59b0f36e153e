"""NIfTI volumes with landmarks or masks (dataset=volumes), and heatmaps (task=landmarks)."""
