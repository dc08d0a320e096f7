"""What `launch.gpu` checks and times."""
