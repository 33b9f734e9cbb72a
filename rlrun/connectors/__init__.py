"""What happens to observations, actions and rewards on their way. Numpy only."""
