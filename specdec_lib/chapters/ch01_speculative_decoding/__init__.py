"""Chapter 1: two drafters on the same recordings, counted by task."""
