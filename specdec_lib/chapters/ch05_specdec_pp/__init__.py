"""Chapter 5: SpecDec++, its heads and the theory of stopping."""
