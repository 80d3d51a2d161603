"""The model servers of a director: their slots, their health, and how far each is trusted."""
