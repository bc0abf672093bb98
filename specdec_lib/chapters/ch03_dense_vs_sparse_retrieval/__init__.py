"""Chapter 3: DReSD and REST on stores of the same text."""
