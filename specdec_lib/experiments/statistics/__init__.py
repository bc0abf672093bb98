"""Rates and their 95 % intervals: one bootstrap for all chapters."""
