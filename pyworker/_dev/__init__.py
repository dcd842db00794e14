"""What helps those who write tasks: a PostgreSQL of their own, reloading, replaying, the demo."""
