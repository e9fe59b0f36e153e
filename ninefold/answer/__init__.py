"""What is said of a comparison. bench, study, report and `ninefold.compare` import it."""
