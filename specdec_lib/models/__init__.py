"""What is decoded: loading, and the pocket pair that ships with the project."""
