"""An application of Django's whose tasks use the ORM."""
