"""Other methods to compare with, one in a file."""
