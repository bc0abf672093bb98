"""Plain runs that are recorded once, methods that are replayed on them, and the rows of counts that every build reads.

``row_files`` reads and writes the rows of ``data/rows``; ``checked_rows`` makes a sample of them again in each build and compares
it; ``papers_prompts`` has those of the papers' own prompts.
"""
