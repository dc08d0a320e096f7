"""Infrastructure of all experiments: command line, run folder, rows, tables and figures."""
