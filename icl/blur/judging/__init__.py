"""Evaluation of learned rules: a suite of tasks, the cost of an update, and classifiers on the same examples."""
