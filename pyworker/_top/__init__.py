"""`pyworker top`: the terminal dashboard."""
