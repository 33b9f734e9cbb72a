"""Reference cases, trained and held against their published numbers."""
