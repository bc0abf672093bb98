"""What a notebook shows and records."""
