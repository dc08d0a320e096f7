"""Language models: one interface, many ways to fit."""
