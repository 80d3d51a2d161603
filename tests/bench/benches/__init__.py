"""What is measured: a module for each bench, a function that takes the options and returns what it found."""
