"""What a prediction is, and where it is kept. Runs nothing; imports nothing of the rooms above."""
