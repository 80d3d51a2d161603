"""Several Redis servers behind one API: which there are, where new work goes, and where each prediction is."""
