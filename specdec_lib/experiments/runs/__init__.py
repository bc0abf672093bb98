"""Plain runs that are recorded once, methods that are replayed on them, and the rows of counts that every build reads.

``evidence`` reads the rows of ``data/rows`` and compares a sample of them with rows made again; ``committed_rows`` reads those
of the papers' prompts in ``data/results``.
"""
