"""What several chapters share, in five rooms: data, statistics, checks, runs and costs."""
