"""Chapter 6: what passes and methods cost in seconds."""
