"""Evaluation of learned rules on a suite of tasks."""
