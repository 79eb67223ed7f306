"""What all runs share: splits, metrics, predictions, the run folder, figures."""
