"""What a report concludes: the typed `tree.Report`, the recommendation and its wording."""
