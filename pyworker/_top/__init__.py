"""`pyworker top`: the queue in the terminal."""
