"""What one chapter alone needs, named after its notebook."""
