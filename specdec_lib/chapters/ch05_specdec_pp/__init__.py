"""Chapter 5: when to stop drafting, in theory and on recorded drafts."""
