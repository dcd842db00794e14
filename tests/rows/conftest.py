from tests.rows.measure import place

__all__ = ["place"]
