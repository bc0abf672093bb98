"""What one chapter alone needs."""
