"""What chooses actions: networks, distributions, and policies in numpy and torch."""
