"""The paper's problems, asked as a user's pairs are: by the defaults of ``fit``."""
