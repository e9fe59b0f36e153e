"""`python -m ninefold export`: a trained network as a file for use elsewhere, verified."""
