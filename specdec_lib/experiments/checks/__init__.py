"""Outputs compared with those of plain decoding, and what rounding explains."""
