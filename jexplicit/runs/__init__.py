"""Infrastructure of all programs: devices, processes, files, checkpoints and progress."""
