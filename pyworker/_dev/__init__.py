"""Tools for development: a private PostgreSQL, reloading, replaying, the demo."""
