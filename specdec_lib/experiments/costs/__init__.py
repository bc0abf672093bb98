"""What passes and drafts cost in time, and the sums of them over the steps of runs."""
