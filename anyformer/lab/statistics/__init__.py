"""What a study says: estimates, comparisons that are corrected, claims that are judged, tables and words."""
