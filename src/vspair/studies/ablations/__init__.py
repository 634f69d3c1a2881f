"""What each part of the anchored model is worth."""
