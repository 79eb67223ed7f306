"""Common parts of all runs: splits, metrics, predictions, the run folder, figures."""
