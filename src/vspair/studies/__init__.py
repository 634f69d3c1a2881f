"""Studies: each trains, measures and leaves tables, figures and a page."""
