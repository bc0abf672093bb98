"""Prompts, the published sets, recorded answers, numbers that the papers print, and the texts of datastores."""
