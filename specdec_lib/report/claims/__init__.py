"""The claims of the papers, their published numbers and their verdicts."""
