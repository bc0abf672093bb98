"""Plain runs that are recorded once, methods that are replayed on them, and the rows of counts that every build reads."""
