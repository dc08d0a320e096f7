"""What every experiment shares: command line, run folder, rows, tables and figures."""
