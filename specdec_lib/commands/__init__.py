"""The commands, one function each, with their options; what an option names is checked before a model is loaded."""
