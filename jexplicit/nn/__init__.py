"""What the explicit solution is compared with: networks trained by gradients."""
