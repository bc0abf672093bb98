"""Appendix A1: how the pocket models are trained."""
