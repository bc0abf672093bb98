"""What an optimal draft length is, and what a draft of a given length costs."""
