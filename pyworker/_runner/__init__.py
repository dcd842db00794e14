"""`pyworker run`: a parent that watches, and children that claim jobs and run their handlers."""
