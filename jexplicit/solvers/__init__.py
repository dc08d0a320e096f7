"""Closed forms and gradient-free sweeps for one softmax layer on numeric features."""
