"""A small application on pyworker: users sign up by plain SQL, a worker sends them mail."""
