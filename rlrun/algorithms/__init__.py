"""The base of all algorithms, then one file each: config, loss, training_step."""
