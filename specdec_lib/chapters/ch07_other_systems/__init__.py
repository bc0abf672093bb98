"""Chapter 7: the other systems of PLD+'s tables, and the shapes that pay on one machine."""
