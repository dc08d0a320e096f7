"""What `launch.accelerator` checks and times."""
