"""Accept, show, list, cancel and wait for predictions, trainings and procedures."""
