"""Chapter 2: what a datastore costs and how fast it is searched."""
