"""Why things are as they are: findings, explain, the overview, the doctor. Changes nothing."""
