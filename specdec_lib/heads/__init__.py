"""What is learned about a model or identified in it."""
