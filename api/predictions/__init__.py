"""Predictions, trainings and procedures: taken in, shown, listed, cancelled, waited for."""
