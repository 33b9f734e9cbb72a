"""From YAML to checked, frozen config objects. A leaf: every room may import it."""
