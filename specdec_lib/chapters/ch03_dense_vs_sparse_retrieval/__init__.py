"""Chapter 3: REST and DReSD on the same stores."""
