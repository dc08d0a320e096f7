"""What a learned rule is judged with: tuned gradient descent on the same networks, and a suite of tasks."""
