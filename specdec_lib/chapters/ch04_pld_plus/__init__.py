"""Chapter 4: PLD+, and where the answers are copied from."""
