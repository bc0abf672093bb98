"""Chapter 8: several sources in one draft, sized by what a pass costs."""
