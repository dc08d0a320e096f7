"""What every program shares: devices, processes, files, checkpoints and progress."""
