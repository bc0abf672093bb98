"""How the notebooks are run and checked, and how the book is made of them."""
