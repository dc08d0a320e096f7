"""In-context problems beyond linear regression."""
