"""`pyworker run`: one parent process supervises children, which claim jobs and run handlers."""
